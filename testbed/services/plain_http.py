"""For clients of servers without TLS: each client would read the system's certificates, which takes 20 ms."""

import ssl

NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # `verify` of the client; it trusts no certificate
