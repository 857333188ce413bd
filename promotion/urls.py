from django.urls import include, path

urlpatterns = [
    path("api/v1/", include("promotion.api.urls")),
    path("", include("promotion.web.urls")),
    path("", include("rollouts.web.urls")),
    path("accounts/", include("allauth.urls")),
]
