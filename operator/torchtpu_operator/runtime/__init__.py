"""Inside the pods: submit, gather slices, rank table, host agents, launcher. Needs ray; ranks bring torch."""
