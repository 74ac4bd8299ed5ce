"""How gRPC is set up; the one module that imports it first."""

from __future__ import annotations

import os

# gRPC reads these when it is loaded. Its own log repeats on stderr what our errors say, and its
# fork handlers warn whenever a data loader starts a worker; no worker ever uses a channel.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
# Its own pollers instead of the newer event engine: a tenth less processor time per byte, and a
# fifth less time per small message.
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")

import grpc

from ravnest.transport.envelope import MAX_GRPC_BYTES

__all__ = ["CHANNEL_OPTIONS", "METHOD", "SERVER_OPTIONS", "SERVICE", "grpc"]

SERVICE = "ravnest.transport.Link"
METHOD = "Stream"

# A peer that is silent for time + timeout is lost. Both sides ask, and both allow being asked.
# The answer queues behind what the sockets hold: 4 MiB take 10 s at 3.4 Mbps.
KEEPALIVE_TIME_MS = 10_000
KEEPALIVE_TIMEOUT_MS = 10_000

_BOTH: tuple[tuple[str, int], ...] = (
    ("grpc.max_send_message_length", MAX_GRPC_BYTES),
    ("grpc.max_receive_message_length", MAX_GRPC_BYTES),
    ("grpc.keepalive_time_ms", KEEPALIVE_TIME_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    # For the pings that measure the link; a keepalive joins one that is under way.
    ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.max_frame_size", (1 << 24) - 1),
    ("grpc.http2.lookahead_bytes", 8 << 20),
    ("grpc.experimental.tcp_read_chunk_size", 4 << 20),
    ("grpc.experimental.tcp_max_read_chunk_size", 4 << 20),
)

CHANNEL_OPTIONS = (
    *_BOTH,
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.dns_min_time_between_resolutions_ms", 5_000),
    # A proxy for web pages cannot carry streams between nodes.
    ("grpc.enable_http_proxy", 0),
    # A stream is never replayed behind our back.
    ("grpc.enable_retries", 0),
    # Two transports of one process must not share, and then break, one connection.
    ("grpc.use_local_subchannel_pool", 1),
)

SERVER_OPTIONS = (
    *_BOTH,
    # Otherwise a second process listens on the same port and gets half of the connections.
    ("grpc.so_reuseport", 0),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_TIME_MS // 2),
    ("grpc.server_handshake_timeout_ms", 10_000),
)
