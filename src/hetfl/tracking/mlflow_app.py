"""MLflow's server as ``make ui`` starts it, by ``mlflow ui --app-name hetfl``.

MLflow 3 has pages for language-model applications and pages for model training, and a browser begins with the former,
whatever the kind of an experiment. Here it begins with the latter; what a user chooses there afterwards is kept.
"""

from __future__ import annotations

from typing import Any

from mlflow.server import app as pages
from mlflow.server.fastapi_app import app

__all__ = ["app"]

CHOICE = "mlflow.workflowType_v1"
"""Where MLflow's pages keep the choice in the browser."""
BEGIN = (
    f"""<script>localStorage.getItem("{CHOICE}") ?? localStorage.setItem("{CHOICE}", '"machine_learning"')</script>"""
)


def begin_with_training(response: Any) -> Any:
    """Choose the pages for model training in a browser in which nothing was chosen."""
    if response.mimetype == "text/html" and response.status_code == 200:
        response.direct_passthrough = False  # the page is a file that would be sent as it is
        response.set_data(response.get_data().replace(b"<head>", b"<head>" + BEGIN.encode(), 1))
        for name in ("ETag", "Last-Modified"):  # of the file
            response.headers.pop(name, None)
    return response


pages.after_request(begin_with_training)
