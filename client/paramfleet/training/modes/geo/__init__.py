"""GEO: workers train replicas, and exchange differences with the servers."""
