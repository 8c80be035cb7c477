"""Delays what passes between two TCP ports of this machine: `delay.py SECONDS LISTEN:TARGET …`.

Every byte arrives SECONDS later, in either direction; a connection stands after twice that. No bound on what is under
way. Says `ready` once all ports are open; ends with its standard input.
"""

import asyncio
import os
import sys

PIECE = 1 << 18


async def carry(reader, writer, seconds):
    """Passes bytes on, each so many seconds after it came."""
    clock, pieces = asyncio.get_running_loop().time, asyncio.Queue()

    async def read():
        try:
            while piece := await reader.read(PIECE):
                pieces.put_nowait((clock() + seconds, piece))
        except ConnectionError:
            pass
        pieces.put_nowait((clock() + seconds, None))

    reading = asyncio.create_task(read())
    try:
        while True:
            due, piece = await pieces.get()
            await asyncio.sleep(max(0.0, due - clock()))
            if piece is None:
                break
            writer.write(piece)
            await writer.drain()
    except ConnectionError:
        pass
    reading.cancel()
    writer.close()


async def relay(seconds, target, reader, writer):
    await asyncio.sleep(2 * seconds)
    try:
        onward = await asyncio.open_connection("127.0.0.1", target)
    except ConnectionError:
        writer.close()
        return
    await asyncio.gather(carry(reader, onward[1], seconds), carry(onward[0], writer, seconds))


async def main():
    seconds = float(sys.argv[1])
    for pair in sys.argv[2:]:
        listen, target = map(int, pair.split(":"))
        taken = lambda reader, writer, target=target: relay(seconds, target, reader, writer)
        await asyncio.start_server(taken, "127.0.0.1", listen, backlog=256)
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    # Whoever measures has ended: what is still on its way goes nowhere, and needs no words.
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main())
