// Bundle the scripts and style sheets of the pages: for each file in static/kandev/pages one file with everything that
// it imports, and what is loaded later as files of its own. Their names contain a hash of their contents, so browsers
// may keep them for ever; each is also written compressed. `manifest.json` maps sources to bundles.

import { createHash } from "node:crypto";
import { existsSync, mkdirSync, readFileSync, readdirSync, statSync, unlinkSync, utimesSync, writeFileSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { brotliCompressSync, gzipSync } from "node:zlib";
import { build } from "esbuild";

const HERE = dirname(fileURLToPath(import.meta.url));
const SOURCES = join(HERE, "static", "kandev");
const BUILT = join(SOURCES, "built");
const MANIFEST = join(BUILT, "manifest.json");
const KEPT_DAYS = 30; // after an upgrade, in which a page that was opened before it can still load what it loads later

const entries = readdirSync(join(SOURCES, "pages")).sort();
const manifest = { sources: fingerprintOfSources(), files: {} };
const written = new Set(["manifest.json"]);
mkdirSync(BUILT, { recursive: true });
const now = new Date();
for (const path of writtenBefore()) utimesSync(path, now, now); // it was in use until now, whenever it was written
for (const entry of entries) await bundle(entry);
removeOld();
writeFileSync(MANIFEST, JSON.stringify({ ...manifest, written: [...written] }, null, 1));

// What the bundles in use so far consist of; nothing if there are none.
function writtenBefore() {
  try {
    const { written: names } = JSON.parse(readFileSync(MANIFEST, "utf-8"));
    return names.map((name) => join(BUILT, basename(name))).filter((path) => existsSync(path));
  } catch {
    return [];
  }
}

async function bundle(entry) {
  const result = await build({
    entryPoints: [join(SOURCES, "pages", entry)],
    outdir: BUILT,
    bundle: true,
    splitting: entry.endsWith(".js"),
    format: entry.endsWith(".js") ? "esm" : undefined,
    minify: true,
    target: "es2022",
    external: ["/static/*"],
    entryNames: "[name]-[hash]",
    chunkNames: "[name]-[hash]",
    metafile: true,
    write: false,
    logLevel: "error",
  });
  for (const file of result.outputFiles) write(basename(file.path), file.contents);
  for (const [path, { entryPoint }] of Object.entries(result.metafile.outputs)) {
    if (entryPoint?.endsWith(`pages/${entry}`)) manifest.files[`kandev/pages/${entry}`] = `kandev/built/${basename(path)}`;
  }
}

function write(name, contents) {
  writeFileSync(join(BUILT, name), contents);
  writeFileSync(join(BUILT, `${name}.gz`), gzipSync(contents, { level: 9 }));
  writeFileSync(join(BUILT, `${name}.br`), brotliCompressSync(contents));
  for (const each of [name, `${name}.gz`, `${name}.br`]) written.add(each);
}

function removeOld() {
  const limit = now - KEPT_DAYS * 24 * 3600 * 1000;
  for (const name of readdirSync(BUILT)) {
    const path = join(BUILT, name);
    if (!written.has(name) && statSync(path).mtimeMs < limit) unlinkSync(path);
  }
}

// The same as in sessions_app/pages/assets.py: bundles of other sources are not used.
function fingerprintOfSources() {
  const names = [...readdirSync(SOURCES), ...entries.map((name) => `pages/${name}`)];
  const sum = createHash("sha256");
  for (const name of names.filter((each) => /\.(js|css)$/.test(each)).sort()) {
    sum.update(`${name}\0`);
    sum.update(readFileSync(join(SOURCES, name)));
  }
  return sum.digest("hex");
}
