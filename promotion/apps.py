from django.apps import AppConfig


class PromotionConfig(AppConfig):
    name = "promotion"

    def ready(self) -> None:
        from django.contrib.auth.models import Group, User
        from django.db.models.signals import m2m_changed, post_save, pre_delete

        from promotion import checks  # noqa: F401  (registers the system checks)
        from promotion.audit.actions import ACTIONS
        from promotion.services import gating, passkeys, signatures, tokens
        from rollouts import audit
        from rollouts.signals import run_closed

        audit.register_actions(ACTIONS)
        passkeys.keep_history()
        m2m_changed.connect(signatures.end_with_role, sender=User.groups.through)
        post_save.connect(signatures.end_with_account, sender=User)
        post_save.connect(tokens.end_with_account, sender=User)
        pre_delete.connect(signatures.end_with_group, sender=Group)
        run_closed.connect(gating.judge_after_run, dispatch_uid="promotion.judge_after_run")
