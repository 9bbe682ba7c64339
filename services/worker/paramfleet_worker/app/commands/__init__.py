"""The commands of ``paramfleet`` that are about a running job, certificates and tokens."""
