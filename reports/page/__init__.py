"""The report: what is asked (`sections`, `questions`), judged (`health`), put together (`report`) and shown
(`rendering`).
"""
