# One image for web, supervisor and worker, which its command selects. See docs/deploy.md.
# BASE: Debian with Python 3.11 to 3.13. NODE: any image with npm. Packages that they contain already are kept.
ARG BASE=python:3.11.14-slim-bookworm@sha256:65a93d69fa75478d554f4ad27c85c1e69fa184956261b4301ebaf6dbb0a3543d
ARG NODE=node:22-bookworm-slim@sha256:43ac6c60b8f89723f746e8a92ce91abd5017e627ce1ddfe4238355d3a30b772c

FROM ${NODE} AS terminal
WORKDIR /build
COPY scripts/setup scripts/
COPY frontend frontend
COPY sessions_app/static sessions_app/static
RUN scripts/setup pages

FROM ${BASE} AS packages
COPY requirements/base.txt /build/
RUN mkdir -p /opt/kandev/packages \
    && { python3 -c 'import channels_redis, daphne, django_q, docker, psycopg' 2>/dev/null \
        || python3 -m pip install --no-cache-dir --require-hashes --target /opt/kandev/packages -r /build/base.txt; } \
    && python3 -m compileall -q /opt/kandev/packages

FROM ${BASE}
LABEL org.opencontainers.image.title="Kandev" \
    org.opencontainers.image.version="1.0.0" \
    org.opencontainers.image.licenses="Apache-2.0"
# git for worktrees, ssh for remote Docker engines, an init that reaps orphaned processes. No compiler, no pip.
RUN { command -v git && command -v tini; } >/dev/null || { apt-get update \
    && apt-get install -y --no-install-recommends git ca-certificates openssh-client tini \
    && rm -rf /var/lib/apt/lists/*; }
RUN rm -rf /usr/local/lib/python3*/site-packages/pip* /usr/local/lib/python3*/ensurepip /usr/local/bin/pip* \
    && printf 'kandev:x:10001:10001::/var/lib/kandev:/usr/sbin/nologin\n' >> /etc/passwd \
    && printf 'kandev:x:10001:\n' >> /etc/group \
    && mkdir -p -m 0700 /var/lib/kandev && chown 10001:10001 /var/lib/kandev

COPY --from=packages /opt/kandev/packages /opt/kandev/packages
COPY manage.py /opt/kandev/
COPY executors_app /opt/kandev/executors_app
COPY kandev /opt/kandev/kandev
COPY sessions_app /opt/kandev/sessions_app
COPY templates /opt/kandev/templates
COPY --from=terminal /build/sessions_app/static /opt/kandev/sessions_app/static
RUN python3 -m compileall -q /opt/kandev/executors_app /opt/kandev/kandev /opt/kandev/sessions_app \
    && chmod -R a+rX /opt/kandev

WORKDIR /opt/kandev
ENV PYTHONPATH=/opt/kandev/packages PYTHONNOUSERSITE=1 PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 \
    HOME=/var/lib/kandev KANDEV_DATA_DIR=/var/lib/kandev LANG=C.UTF-8
USER 10001:10001
VOLUME /var/lib/kandev
EXPOSE 8000
STOPSIGNAL SIGTERM
# For the web process. Supervisors and workers report in /readyz and /metrics; compose.yaml disables this check for them.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python3", "-I", "-S", "/opt/kandev/kandev/healthcheck.py"]
ENTRYPOINT ["tini", "--"]
CMD ["python3", "-m", "daphne", "-v", "0", "--no-server-name", "-b", "0.0.0.0", "-p", "8000", \
    "--websocket-max-message-size", "4194304", "--websocket-max-frame-size", "4194304", "kandev.asgi:application"]
