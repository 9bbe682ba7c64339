"""What ``import paramfleet as fleet`` offers: functions on the one session of a process."""
