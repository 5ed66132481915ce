"""A team whose agent, viewer and admin do everything at once that costs much, and what another team notices."""
