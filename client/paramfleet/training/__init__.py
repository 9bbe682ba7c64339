"""An optimizer step in each way of training: modes with servers, LocalSGD, collective."""
