from django.apps import AppConfig
from django.db.models.signals import post_migrate


class RolloutsConfig(AppConfig):
    name = "rollouts"

    def ready(self) -> None:
        from rollouts import append_only

        post_migrate.connect(append_only.install_after_migrate, dispatch_uid="rollouts.append_only")
