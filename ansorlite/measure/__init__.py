"""Building and measuring candidates in separate processes: `builder`, `runner`, `race`.

Also here: the machine's limits (`peak`, `calibrate`, `limits`) and their cache (`machine_cache`).
"""
