"""The filter language (`FILTER.md`): words, terms, and their evaluation over columns or one exchange."""
