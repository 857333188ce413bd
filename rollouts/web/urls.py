"""The pages of the execution app."""

from django.urls import path

from rollouts.web import datasets, rollout_page, run_page, views

app_name = "rollouts"

urlpatterns = [
    path("runs/", views.runs, name="runs"),
    path("runs/new/", views.new_run, name="new-run"),
    path("runs/new/start/", views.start_run, name="start-run"),
    path("runs/<int:pk>/", run_page.run, name="run"),
    path("runs/<int:pk>/progress/", run_page.progress, name="progress"),
    path("runs/<int:pk>/measured/", run_page.measured, name="measured"),
    path("runs/<int:pk>/cancel/", views.cancel, name="cancel"),
    path("runs/<int:pk>/again/", views.again, name="again"),
    path("runs/<int:pk>/rescore/", views.rescore, name="rescore"),
    path("runs/<int:pk>/rollouts/", views.rollouts, name="rollouts"),
    path("rollouts/<int:pk>/", rollout_page.rollout, name="rollout"),
    path("rollouts/<int:pk>/answer.txt", rollout_page.answer, name="answer"),
    path("calls/<int:pk>/request.txt", rollout_page.body, {"part": "request"}, name="request"),
    path("calls/<int:pk>/response.txt", rollout_page.body, {"part": "response"}, name="response"),
    path("suites/", views.suites, name="suites"),
    path("suites/<slug:name>/<int:version>/", views.suite, name="suite"),
    path("datasets/", datasets.datasets, name="datasets"),
    path("datasets/new/", datasets.new_dataset, name="new-dataset"),
    path("datasets/new/register/", datasets.register_dataset, name="register-dataset"),
    path("datasets/<slug:name>/<int:version>/", datasets.dataset, name="dataset"),
    path("cases/<int:pk>/", views.case, name="case"),
    path("cases/<int:pk>/case.txt", views.case_json, name="case-json"),
    path("backends/", views.backends, name="backends"),
    path("backends/<slug:name>/", views.backend, name="backend"),
    path("bases/", views.bases, name="bases"),
]
