"""What happened in a run, as tables: recorded on the fly, written as Parquet, read back and exported.

`recorder` drains the device's buffers, `modules` and `steps` add what only Python knows (module paths, step
boundaries, tokens), `session` ties them together for `opentrn run`, `reader` loads a trace directory,
`export` writes Perfetto and Chrome traces. The tables are described in `schema`, and docs/trace-schema.md is
generated from it.
"""
