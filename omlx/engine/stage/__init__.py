"""One model over several processes: each holds a stage, some of its layers.

Rank 0, the leader, has the last layers, the head, and everything that decides. Ranks 1 to size - 1
carry out its plans; the last of them has the embedding and the first layers.

    order     what the processes of a group are given at their start
    link      frames of bytes between leader and follower; plans travel here
    group     hidden states and ids between neighbours, by mx.distributed
    ends      cuts a model: which layers a rank keeps, what they receive and send
    runners   leader and followers: they carry out the same plans
    stages    what the leader knows of its followers
    sizes     what the memory guard counts for their caches
"""
