import re
from importlib.metadata import entry_points

import pytest

from hetfl.tracking.mlflow_database import ENVIRONMENT


@pytest.fixture(scope="module")
def pages():
    with pytest.MonkeyPatch.context() as patch:
        # Both are read when MLflow is imported.
        for name, value in {**ENVIRONMENT, "MLFLOW_SERVER_DISABLE_SECURITY_MIDDLEWARE": "true"}.items():
            patch.setenv(name, value)
        (app,) = entry_points(group="mlflow.app", name="hetfl")
        app.load()
        from mlflow.server import app as pages

        return pages.test_client()


def test_the_page_begins_with_model_training_and_nothing_else_is_changed(pages):
    page = pages.get("/").get_data(as_text=True)
    script = """localStorage.setItem("mlflow.workflowType_v1", '"machine_learning"')"""
    assert page.index("<head><script>") < page.index(script) < page.index("</script>")
    assert page.rstrip().endswith("</html>")
    assert pages.get("/version").get_data(as_text=True)[0].isdigit()
    # The key is the one that MLflow's pages use.
    main = re.search(r'src="(static-files/static/js/main[^"]*)"', page)
    assert 'key:"mlflow.workflowType",version:1' in pages.get(f"/{main[1]}").get_data(as_text=True)
