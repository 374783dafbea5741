"""The real ttnn library: on a mock board, on a simulator, on a card.

ttnn opens one cluster in a process and keeps it: after a device is closed it can be opened again, but another board,
a simulator or a card needs another process (`run_apart`). The emulated device is no cluster and stands beside any.

    library.py    finds ttnn, sets its environment, remembers which cluster this process has
    overlay.py    a runtime root with a stand-in compiler, for devices whose kernels compute nothing
    mock.py, simulated.py, silicon.py    the three targets
"""
