"""Training by days and passes, as new data comes."""
