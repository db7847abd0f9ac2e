"""Mechanisms and theorems that surveys list, no method uses, and OpenDP lacks; `papers.survey` shows them."""
