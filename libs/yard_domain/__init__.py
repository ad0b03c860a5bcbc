"""The words of gpuyard: job specifications, states, reasons, quantities. Plain frozen data, no I/O and no clock."""
