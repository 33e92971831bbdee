"""nginx from the distribution's packages, as a plain reverse proxy: what passing bytes on costs at the least."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

from children import Children
from private_venv import Missing

from environment.system import apt_install

# In one process, so that it ends with the benchmark. Connections are kept however often they were used.
_CONFIG: Final = """
daemon off;
master_process off;
{user}
pid {folder}/nginx.pid;
error_log {folder}/nginx-error.log warn;
events {{ worker_connections 1024; }}
http {{
  access_log off;
  client_body_temp_path {folder}/nginx-body;
  proxy_temp_path {folder}/nginx-proxy;
  fastcgi_temp_path {folder}/nginx-fastcgi;
  uwsgi_temp_path {folder}/nginx-uwsgi;
  scgi_temp_path {folder}/nginx-scgi;
  keepalive_requests 1000000000;
  upstream backend {{
    server 127.0.0.1:{backend};
    keepalive 128;
    keepalive_requests 1000000000;
  }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://backend;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
    }}
  }}
}}
"""


def start_nginx(children: Children, port: int, backend: int) -> int:
    """Its pid. Raises Missing."""
    config = children.folder / "nginx.conf"
    user = "user root;" if os.geteuid() == 0 else ""
    config.write_text(_CONFIG.format(user=user, folder=children.folder, port=port, backend=backend))
    return children.spawn([str(_program()), "-p", str(children.folder), "-c", str(config)], log="nginx.log").pid


def nginx_version() -> str:
    """Raises Missing."""
    done = subprocess.run([_program(), "-v"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return done.stderr.strip().removeprefix("nginx version: ")


def _program() -> Path:
    found = _found()
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        apt_install("nginx")
        found = _found()
    if found is None:
        raise Missing("not installed (apt-get install nginx)")
    return found


def _found() -> Path | None:
    path = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    return None if path is None else Path(path)
