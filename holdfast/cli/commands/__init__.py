"""One module per verb; `holdfast.cli.main` imports the one that is asked for."""
