"""One model over several processes: each holds a stage, some of its layers.

Rank 0, the leader, has the last layers, the head, and everything that decides. Ranks 1 to size - 1
carry out its plans; the last of them has the embedding and the first layers.

    link      orders of processes; frames of bytes, in which plans travel
    ends      cuts a model: which layers a rank keeps, what they receive and send
    runners   leader and followers carry out the same plans; hidden states go by mx.distributed
    stages    what the leader knows of its followers
"""
