"""Appends records from four processes to one log, then checks that none is lost or torn.

    python3 records.py /mnt/h/log                  through the mount
    heddle run -- python3 records.py /mnt/h/log    with the bypass: the same program, the same result
"""

import multiprocessing
import os
import sys

WORKERS, RECORDS = 4, 250


def work(path, worker):
    log = os.open(path, os.O_WRONLY | os.O_APPEND)
    for number in range(RECORDS):
        os.write(log, f"{worker} {number} {'x' * (number % 50)}\n".encode())
    os.close(log)


def main(path):
    open(path, "w").close()
    workers = [multiprocessing.Process(target=work, args=(path, w)) for w in range(WORKERS)]
    for process in workers:
        process.start()
    for process in workers:
        process.join()
    seen = {worker: 0 for worker in range(WORKERS)}
    with open(path) as log:
        for line in log:
            worker, number, filling = line.rstrip("\n").split(" ")
            assert int(number) == seen[int(worker)] and len(filling) == int(number) % 50, line
            seen[int(worker)] += 1
    assert all(count == RECORDS for count in seen.values()), seen
    print(sum(seen.values()), "records,", os.stat(path).st_size, "bytes")


if __name__ == "__main__":
    main(sys.argv[1])
