"""TPU facts and arithmetic: generations, topologies, hosts, devices, ranks, process environments. Pure."""
