"""The routes of the review page: the list, the cards, the decisions and the exported files.

Rows are requested by number and static files by a name from a fixed table, so no path that a client
sends reaches the file system.
"""

from __future__ import annotations

from dataclasses import asdict
from importlib import resources
from typing import Annotated, Any, Literal

from fastapi import FastAPI, HTTPException, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException as StarletteHTTPException

from exempla.errors import ExemplaError
from exempla.review.export import BusyError, corrected_path, export_review
from exempla.review.folder import Review, image_bytes, is_number, other_decisions
from exempla.review.log import DamagedError, RowDecision, StaleError, StorageError
from exempla.review.session import FIELDS, RENEWED_EVERY, ReviewSession, entry

_MEDIA_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
_Once = Annotated[str, Field(min_length=8, max_length=64, pattern=r"^[A-Za-z0-9-]+$")]
_Seen = Annotated[int, Field(ge=0)]
_Row = Annotated[int, Path(ge=0, le=2**53)]


class _Empty(BaseModel):
    """A request body: no unknown fields, no silent conversion."""

    model_config = ConfigDict(extra="forbid", strict=True)


class _Turn(_Empty):
    """Undo or redo the event `seen`."""

    seen: _Seen
    once: _Once


class _Decide(_Turn):
    """Set the state of a row; `seen` is the version of the row on the page."""

    row: int = Field(ge=0)
    action: Literal["pending", "keep", "relabel", "remove", "skip"]
    label: str | None = Field(default=None, max_length=4096)
    note: str = Field(default="", max_length=10_000)


class _Stop(_Empty):
    """The fraction of wrong rows below which the person wants to stop."""

    share: float = Field(gt=0, lt=1, allow_inf_nan=False)


def build_app(session: ReviewSession) -> FastAPI:
    """Return the page's application; the server puts it behind its `Gate`."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    _add_static(app)
    _add_reading(app, session)
    _add_deciding(app, session)
    _add_export(app, session.review)
    for kind in (RequestValidationError, StarletteHTTPException, ExemplaError, OSError, Exception):
        app.add_exception_handler(kind, _problem)

    @app.exception_handler(StaleError)
    def stale(_: Request, error: StaleError) -> JSONResponse:
        current = None if error.state is None else asdict(error.state)
        return JSONResponse({"current": current} | session.status(0), status_code=409)

    return app


def _problem(_: Request, error: Exception) -> JSONResponse:
    """Answer a failure with a sentence; never echo what was sent."""
    code, words = 500, f"Internal error ({type(error).__name__}); please report it."
    if isinstance(error, RequestValidationError):
        code, words = 422, "The request is invalid; reload the page."
    elif isinstance(error, StarletteHTTPException):
        code, words = error.status_code, str(error.detail)
        if not words.endswith("."):  # not one of our sentences
            words = {404: "Not found."}.get(code, "The request is invalid.")
    elif isinstance(error, ExemplaError):
        code = {BusyError: 409, StorageError: 507, DamagedError: 503}.get(type(error), 400)
        words = str(error)
    elif isinstance(error, OSError):
        why = error.strerror or type(error).__name__
        code, words = 503, f"The review folder cannot be accessed ({why})."
    # A file name in it may contain bytes that are not valid text.
    detail = words.encode("utf-8", "replace").decode()
    return JSONResponse({"detail": detail}, status_code=code)


def _add_static(app: FastAPI) -> None:
    files: dict[str, Response] = {}
    for item in resources.files("exempla.review").joinpath("static").iterdir():
        if kind := _MEDIA_TYPES.get(item.name[item.name.rfind(".") :]):
            files[item.name] = Response(item.read_bytes(), media_type=kind)

    @app.get("/")
    def page() -> Response:
        return files["index.html"]

    @app.get("/static/{name}")
    def static(name: str) -> Response:
        if name not in files:
            raise HTTPException(404)
        return files[name]


def _add_reading(app: FastAPI, session: ReviewSession) -> None:
    review, log = session.review, session.log

    @app.get("/api/review")
    def overview() -> dict[str, Any]:
        return {
            "source": str(review.source.path).replace("\\", "/").split("/")[-1],
            "format": review.source.format,
            "question": review.question,
            "classes": review.classes,
            # For unsent decisions in the browser's storage; without the names of file and column.
            "key": review.key.partition(" ")[0],
            "elsewhere": other_decisions(log.others()),
            "learns": review.strata is not None,
            "renewed_every": RENEWED_EVERY,
            "fields": FIELDS,
            "suspects": [entry(suspect) for suspect in review.suspects],
        }

    @app.get("/api/state")
    def state(since: int = 0) -> dict[str, Any]:
        review.check_current()
        log.refresh()
        return session.status(since)

    @app.get("/api/suspect/{item}")
    def suspect(item: _Row) -> dict[str, Any]:
        _check_shown(session, item)
        return review.card(item) | {"chance": session.probability(item)}

    @app.get("/api/find")
    def find(wanted: Annotated[str, Query(max_length=200)]) -> dict[str, Any]:
        return {"items": [item for item in review.find(wanted) if session.shows(item)]}

    @app.get("/api/image/{space}/{row}")
    def image(space: Literal["train", "curated"], row: _Row) -> Response:
        data = image_bytes(review.directory, space, row)
        if data is None:
            raise HTTPException(404)
        return Response(data, media_type="image/webp")

    @app.get("/api/order")
    def order() -> dict[str, Any]:
        found = session.renewal()
        items = list({*found.order, *(suspect.item for suspect in session.drawn())})
        chances = [round(session.probability(item), 4) for item in items]
        return {"decisions": found.decisions, "order": found.order,
                "chances": list(zip(items, chances, strict=True))}  # fmt: skip


def _check_shown(session: ReviewSession, item: int) -> None:
    if not session.shows(item):
        raise HTTPException(404, "That row is not among the suspects.")


def _add_deciding(app: FastAPI, session: ReviewSession) -> None:
    log = session.log

    def answer(done: RowDecision) -> dict[str, Any]:
        session.draw_if_due()
        return {"state": asdict(done)} | session.status(done.version - 1)

    @app.post("/api/decide")
    def decide(body: _Decide) -> dict[str, Any]:
        _check_shown(session, body.row)
        if (body.action == "relabel") != (body.label is not None):
            raise HTTPException(422, "Send a label with the action relabel, and only with it.")
        if body.label is not None:
            number = session.plan.items[session.plan.place[body.row]].kind == "number"
            if number and (not is_number(body.label) or body.label != body.label.strip()):
                raise HTTPException(422, "That is not a number.")
            if not number and body.label not in session.review.classes:
                raise HTTPException(422, "That label is not one of the classes.")
        state = RowDecision(body.row, body.action, body.label, body.note)
        return answer(log.decide(state, seen=body.seen, once=body.once))

    @app.post("/api/undo")
    def undo(body: _Turn) -> dict[str, Any]:
        return answer(log.undo(seen=body.seen, once=body.once))

    @app.post("/api/redo")
    def redo(body: _Turn) -> dict[str, Any]:
        return answer(log.redo(seen=body.seen, once=body.once))

    @app.post("/api/spot")
    def spot(_: _Empty) -> dict[str, Any]:
        session.draw_if_due(asked=True)
        return session.status(0)

    @app.post("/api/skip-sample")
    def skip_sample(_: _Empty) -> dict[str, Any]:
        session.skip_sample()
        return session.status(log.version)

    @app.post("/api/stop")
    def stop(body: _Stop) -> dict[str, Any]:
        session.set_stop(body.share)
        return session.status(log.version)


def _add_export(app: FastAPI, review: Review) -> None:
    @app.post("/api/export")
    def export(_: _Empty) -> dict[str, Any]:
        made = export_review(review)
        return {
            "decisions": len(made.decisions),
            "changed": made.changed,
            "problem": made.problem or None,
            "corrected": made.corrected and made.corrected.name,
            "folder": made.corrected is not None and made.corrected.is_dir(),
        }

    @app.get("/api/export/{what}")
    def download(what: Literal["decisions", "patch", "corrected"]) -> Response:
        names = {"decisions": "decisions.json", "patch": "patch.csv"}
        path = review.directory / names[what] if what in names else corrected_path(review)
        if path.is_symlink() or not path.is_file():
            raise HTTPException(404, "Nothing has been exported yet.")
        return FileResponse(path, media_type="application/octet-stream", filename=path.name)
