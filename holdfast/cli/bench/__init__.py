"""The benchmark behind `holdfast bench`: fixed workloads, measured against the raw commits of this disk."""
