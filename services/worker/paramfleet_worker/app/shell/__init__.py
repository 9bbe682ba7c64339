"""The command line itself: commands of other packages, and what shells complete."""
