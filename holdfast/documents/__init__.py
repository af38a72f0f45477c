"""Documents: workflows written as YAML or JSON, compiled to the one definition that Python graphs compile to."""
