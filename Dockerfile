# One image for web, worker and beat.
FROM python:3.11-slim
ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# llama.cpp's CPU build needs OpenMP
RUN apt-get update && apt-get install -y --no-install-recommends libgomp1 && rm -rf /var/lib/apt/lists/*
WORKDIR /app
COPY pyproject.toml README.md manage.py ./
COPY promotion promotion
COPY rollouts rollouts
COPY templates templates
RUN pip install -e '.[local]' \
 && useradd --create-home --uid 10001 assay && mkdir /var/lib/assay && chown assay /var/lib/assay
ENV ASSAY_ENV=production ASSAY_VAR=/var/lib/assay
USER assay
VOLUME /var/lib/assay
EXPOSE 8000
CMD ["sh", "-c", "python manage.py collectstatic --noinput && exec gunicorn promotion.wsgi:application --bind 0.0.0.0:8000 --workers 2 --threads 8 --access-logfile -"]
