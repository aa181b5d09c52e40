"""The look of report.html: one style sheet, for light and dark screens and for paper."""

STYLE = """
:root {
  color-scheme: light dark;
  --paper: #fcfcfb; --ink: #1d1f21; --soft: #5d646b; --grid: #d9dcdf; --band: #f2f3f3;
  --bad: #a8321f; --link: #1f5f99;
  --series-0: #4a5560; --series-1: #c2410c; --series-2: #1d6fb8; --series-3: #3f7d20;
  --series-4: #8a3ea8; --series-5: #a87900; --series-6: #0f7f7a; --series-7: #b02a5b;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #16181a; --ink: #e6e7e8; --soft: #a2a9b0; --grid: #3a3f44; --band: #1f2225;
    --bad: #ff9c86; --link: #86bdf0;
    --series-0: #b4bec8; --series-1: #ff9152; --series-2: #6fb5f5; --series-3: #8fcf6a;
    --series-4: #cf95e8; --series-5: #e3b94f; --series-6: #55cbc4; --series-7: #f283ab;
  }
}
* { box-sizing: border-box; }
html { background: var(--paper); color: var(--ink); -webkit-text-size-adjust: 100%; }
body {
  margin: 0 auto; max-width: 68rem; padding: 3rem 1.5rem 5rem;
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", "Helvetica Neue", "Noto Sans", Arial,
    "DejaVu Sans", sans-serif;
}
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .4rem; letter-spacing: -.015em; }
h2 { font-size: 1.25rem; margin: 3.2rem 0 .4rem; letter-spacing: -.01em; }
p { margin: .4rem 0 1rem; max-width: 46rem; }
.lead, .note, caption, figcaption { color: var(--soft); }
.note, figcaption { font-size: .875rem; max-width: 50rem; }
figcaption { margin-top: .5rem; }
a { color: var(--link); }
.scroll { overflow-x: auto; margin: 1rem 0 1.2rem; }
table { border-collapse: collapse; font-size: .9375rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-size: .875rem; padding-bottom: .4rem; }
th, td { padding: .38rem .9rem .38rem 0; text-align: right; vertical-align: baseline; }
th { font-weight: 600; }
th:first-child, td:first-child, .text { text-align: left; }
thead th { border-bottom: 1.5px solid var(--ink); white-space: nowrap; vertical-align: bottom; }
tbody tr + tr > * { border-top: 1px solid var(--grid); }
tbody th { white-space: nowrap; }
tr.gain > * { color: var(--soft); }
tr + tr.group > * { border-top: 1.5px solid var(--ink); }
tr.again th { font-weight: 400; color: var(--soft); }
tr.gain th { font-weight: 400; padding-left: 1.1rem; }
td { white-space: nowrap; }
small {
  display: block; color: var(--soft); font-size: .75rem; line-height: 1.35; font-weight: 400;
}
.wrapped { display: block; white-space: normal; min-width: 24rem; overflow-wrap: anywhere; }
.best { font-weight: 700; }
.bad { color: var(--bad); }
.facts {
  display: grid; grid-template-columns: max-content 1fr; gap: .25rem 1.4rem; font-size: .9375rem;
}
.facts dt { color: var(--soft); }
.facts dd { margin: 0; overflow-wrap: anywhere; }
.legend { display: flex; flex-wrap: wrap; gap: .3rem 1.4rem; margin: 1rem 0 .2rem; padding: 0; }
.legend li { list-style: none; font-size: .9375rem; }
.key { vertical-align: -2px; margin-right: .4rem; }
figure { margin: .6rem 0 1.4rem; }
figure > div { overflow-x: auto; }
figure > div > svg { display: block; max-width: 100%; min-width: 34rem; height: auto; }
figure svg text { font-family: inherit !important; }
details { margin: .5rem 0; }
summary { cursor: pointer; }
pre {
  background: var(--band); padding: .7rem .9rem; border-radius: 4px; font-size: .8125rem;
  line-height: 1.5; white-space: pre-wrap; overflow-wrap: anywhere; margin: .4rem 0 .9rem;
}
code, pre { font-family: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
@media (max-width: 40rem) { body { padding: 1.5rem 1rem 3rem; } h1 { font-size: 1.5rem; } }
@media print { body { max-width: none; padding: 0; } h2 { break-after: avoid; } }
"""
