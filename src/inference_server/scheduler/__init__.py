"""Who runs in the next step: queues, policies, admission, preemption. Pure, deterministic, standard library only."""
