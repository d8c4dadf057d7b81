"""A small web server on this machine, with the faults a real one can have."""

import http.server
import re
import threading

import pytest


class FaultyHandler(http.server.BaseHTTPRequestHandler):
    """Serves ``server.content``; what is wrong with it is in the server's attributes."""

    def do_GET(self):
        server = self.server
        server.requests.append(self.headers.get("Range"))
        if server.status is not None:
            self.send_error(server.status)
            return
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        start = int(asked[1]) if asked and server.ranges else 0
        if start >= len(server.content) > 0:
            self.send_error(416)
            return
        body = server.content[start:]
        self.send_response(206 if asked and server.ranges else 200)
        if asked and server.ranges:
            last = len(server.content) - 1
            total = "*" if server.hide_length else len(server.content)
            span = server.span or f"bytes {start}-{last}/{total}"
            self.send_header("Content-Range", span)
        if not server.hide_length:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        cut = server.cuts.pop(0) if server.cuts else None
        self.wfile.write(body[:cut])
        if server.stalls:
            self.wfile.flush()
            server.released.wait(10)

    def log_message(self, *_):
        """Keep the test output clean."""


@pytest.fixture
def server():
    """A running server; ``cuts`` are the bytes each answer sends before it hangs up (or stalls)."""
    web = http.server.ThreadingHTTPServer(("127.0.0.1", 0), FaultyHandler)
    web.content, web.requests, web.cuts = b"", [], []
    web.ranges, web.hide_length, web.status, web.span = True, False, None, None
    web.stalls, web.released = False, threading.Event()
    web.url = f"http://127.0.0.1:{web.server_port}/cifar-10-binary.tar.gz"
    thread = threading.Thread(target=web.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield web
    web.released.set()
    web.shutdown()
    thread.join()
    web.server_close()
