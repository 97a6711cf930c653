# The core of exempla: files, scikit-learn models, reports. No torch, no web server.
#   docker build -t exempla .
#   docker run --rm -u "$(id -u):$(id -g)" -v "$PWD:/data" exempla explain mails.csv --label spam
# (-u: what is written belongs to you.)
FROM python:3.12-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE CHANGELOG.md ./
COPY src src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.12-slim
COPY --from=build /wheels /wheels
COPY constraints.txt /wheels/constraints.txt
RUN pip install --no-cache-dir -c /wheels/constraints.txt /wheels/*.whl openpyxl && rm -r /wheels \
    && useradd --create-home --uid 1000 user
USER 1000
# caches have a place whoever runs it
ENV HOME=/tmp
WORKDIR /data
ENTRYPOINT ["exempla"]
CMD ["--help"]
