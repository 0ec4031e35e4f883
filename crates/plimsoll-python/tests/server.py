"""An HTTP server of the files of a folder that knows ranges, on this machine, and whose answers can go wrong as told."""

import hashlib
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Server:
    """Serves `folder` until it is closed."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.failures = 0  # So many next requests are answered by 503.
        self.silent_from = None  # Requests of bytes from here on are not answered ...
        self.waited_for = threading.Event()  # ... and one was made.
        self.without = ""  # Answers have no such header.
        self.ranges: list[tuple[int, int]] = []
        self._closing = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/{name}"

    def close(self):
        self._closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _handler(self):
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_HEAD(self):
                self.answer(body=False)

            def do_GET(self):
                self.answer(body=True)

            def answer(self, body):
                path = server.folder / self.path.lstrip("/")
                if server.failures > 0:
                    server.failures -= 1
                    return self.say(503, b"", {})
                if not path.is_file():
                    return self.say(404, b"", {})
                content = path.read_bytes()
                tag = {"ETag": f'"{hashlib.sha256(content).hexdigest()[:16]}"', "Accept-Ranges": "bytes"}
                span = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
                if span is None:
                    return self.say(200, content if body else b"", tag, len(content))
                first, last = int(span[1]), min(int(span[2]), len(content) - 1)
                server.ranges.append((first, last))
                if server.silent_from is not None and last >= server.silent_from:
                    server.waited_for.set()
                    server._closing.wait()
                    return None
                said = tag | {"Content-Range": f"bytes {first}-{last}/{len(content)}"}
                return self.say(206, content[first : last + 1], said)

            def say(self, status, content, headers, length=None):
                self.send_response(status)
                headers["Content-Length"] = str(len(content) if length is None else length)
                headers["Last-Modified"] = "Mon, 01 Jan 2024 00:00:00 GMT"
                if server.without == "Content-Length":
                    headers["Connection"] = "close"  # The end of the answer is that of the connection.
                for name, value in headers.items():
                    if name != server.without:
                        self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

        return Handler
