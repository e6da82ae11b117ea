"""Keys and values of records, decoded: the framing of registries, the formats, and where schemas come from.

A value goes through `framing` (whose schema is it written with), `schemas` (that schema, from a folder or a registry)
and the module of its format. Rule: what cannot be decoded has a reason, whatever bytes it is made of, and no value may
become more than `limits` says. Nothing here is imported before an option about payloads is given.
"""
