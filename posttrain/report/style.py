"""The style sheet: one accent colour, light and dark, fit for print."""

from __future__ import annotations

STYLE = """
:root{--paper:#fff;--ink:#1d2429;--muted:#5c6870;--faint:#98a2a9;--rule:#dfe4e7;--wash:#f5f7f8;
--accent:#0b6e72;--soft:#d8ecec;--second:#c3ccd1;--third:#9aa7ae}
@media (prefers-color-scheme:dark){:root{--paper:#14181b;--ink:#e3e8ea;--muted:#9aa6ad;
--faint:#66727a;--rule:#2b3338;--wash:#1b2125;--accent:#4fb9b6;--soft:#173c3e;--second:#475259;
--third:#7f8c94}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);
font:15px/1.55 system-ui,-apple-system,"Segoe UI","Helvetica Neue",Arial,sans-serif}
main{max-width:960px;margin:0 auto;padding:40px 24px 80px}
header{margin-bottom:8px}
h1{font-size:30px;line-height:1.2;margin:0 0 10px;font-weight:650;letter-spacing:-.01em}
h2{font-size:20px;margin:0 0 12px;font-weight:650;letter-spacing:-.005em}
h3{font-size:15px;margin:26px 0 8px;font-weight:650}
.kicker{margin:0 0 2px;color:var(--accent);font-size:13px;font-weight:600}
p{margin:8px 0;max-width:74ch}
section{padding-top:22px;margin-top:30px;border-top:1px solid var(--rule)}
nav{display:flex;flex-wrap:wrap;gap:4px 16px;font-size:13px;margin:18px 0 0}
a{color:var(--accent);text-decoration:none}a:hover{text-decoration:underline}
code,pre,.mono{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace}
code{font-size:.88em}
.faint{color:var(--faint)}
.scroll{overflow-x:auto;margin:10px 0}
table{border-collapse:collapse;width:100%;font-size:13.5px;font-variant-numeric:tabular-nums}
th{text-align:left;font-weight:600;color:var(--muted);font-size:12.5px;vertical-align:bottom}
th,td{padding:5px 12px 5px 0;border-bottom:1px solid var(--rule)}
td{vertical-align:top}
th:last-child,td:last-child{padding-right:2px}
thead th{border-bottom:1px solid var(--third)}
.n{text-align:right}td.n,td:first-child{white-space:nowrap}
tr.total td{font-weight:650;border-top:1px solid var(--third)}
.tiles{display:grid;grid-template-columns:repeat(auto-fill,minmax(160px,1fr));gap:14px 24px;
margin:22px 0 8px}
.tile{border-top:2px solid var(--accent);padding-top:8px}
.tile b{display:block;font-size:25px;line-height:1.15;font-weight:650;
font-variant-numeric:tabular-nums}
.tile span{display:block;font-size:13px;margin-top:3px}
.tile small{display:block;color:var(--muted);font-size:12.5px}
figure{margin:16px 0;overflow-x:auto}
figure svg{width:100%;height:auto;display:block}
figcaption{color:var(--muted);font-size:13px;margin-top:4px;max-width:80ch}
svg{stroke-linejoin:round}
svg text{font-family:inherit!important;font-variant-numeric:tabular-nums}
.spark svg{width:120px;height:22px;display:block}
.pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(340px,1fr));gap:0 32px}
.bar{display:block;width:72px;height:9px;background:var(--wash);margin-top:6px}
.bar i{display:block;height:100%;background:var(--accent)}
dl.stats{display:grid;grid-template-columns:max-content 1fr;gap:3px 20px;margin:10px 0;
font-size:13.5px}
dl.stats dt{color:var(--muted)}dl.stats dd{margin:0;overflow-wrap:anywhere}
details{border:1px solid var(--rule);border-radius:4px;margin:8px 0}
summary{cursor:pointer;padding:7px 12px;font-size:13.5px;color:var(--muted)}
summary b{color:var(--ink);font-weight:600}
details>:not(summary){margin-left:12px;margin-right:12px}
pre{font-size:12.5px;line-height:1.5;white-space:pre-wrap;overflow-wrap:anywhere;
background:var(--wash);padding:10px 12px;border-radius:3px;max-height:440px;overflow-y:auto}
pre.chat{background:none;border-left:2px solid var(--rule);border-radius:0;color:var(--muted);
margin-top:4px}
pre.chat mark{background:var(--soft);color:var(--ink);border-radius:2px}
td.heat,td.heat:last-child{padding-right:10px;
background:color-mix(in srgb,var(--accent) var(--share),transparent)}
ul{padding-left:20px;font-size:14px}
@media (max-width:680px){figure svg{min-width:640px}.pair figure svg{min-width:0}}
@media print{main{max-width:none;padding:0}details{break-inside:avoid}nav{display:none}}
""".strip()
