"""The discrete-event driver of the same logic: kernel, workloads, traces."""
