"""What is decided and computed without input and output; time is an argument."""
