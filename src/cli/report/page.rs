//! The page of a report: HTML with inline styles and pictures. It has no script and loads nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use crate::cli::common::output::{human, human_part};
use crate::cli::report::feed::{Bytes, Feed, Model, Tensor, rank};
use crate::cli::report::measure::{Measured, cosine};
use crate::cli::report::treemap::{Area, squarified};
use crate::model::Tier;

const STYLE: &str = include_str!("page.css");
/// The most tensors of a store in tables and heat maps: those with the most stored bytes.
pub(super) const TENSORS_MAX: usize = 5000;
/// The most rows of a table of groups of tensors: those with the most stored bytes.
const GROUPS_MAX: usize = 200;
/// Steps of the scales of colours.
const STEPS: usize = 9;
/// The width of a picture, in its own units.
const WIDTH: f64 = 960.0;
const MAP_HEIGHT: f64 = 380.0;
const CELL: f64 = 22.0;
/// The approximate width of a letter of 11 pixels.
const LETTER: f64 = 6.4;

pub(super) fn page(feed: &Feed) -> String {
    let mut out = String::with_capacity(64 << 10);
    let tensors: usize = feed.models.iter().map(|model| model.tensors.len()).sum();
    let (all, title) = (sum(&feed.tiers), escaped(&feed.place));
    let heading = breakable(&feed.place);
    let mut put = |text: &str| out.push_str(text);
    put("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">");
    put(
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">",
    );
    put("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">");
    put("<meta name=\"color-scheme\" content=\"light dark\"><link rel=\"icon\" href=\"data:,\">");
    put(&format!("<title>tierfs: {title}</title>\n<style>{STYLE}</style></head><body>\n"));
    put(&format!("<header><h1>{heading}</h1><p>Store {}</p></header>\n", escaped(&feed.store)));
    put("<section class=\"facts\">");
    for (name, value) in [
        ("stored", human(all.stored)),
        ("as read", human(all.logical)),
        ("stored of read", percent(all.stored, all.logical)),
        ("collections", feed.collections.len().to_string()),
        ("files", feed.files.to_string()),
        ("tensors", tensors.to_string()),
        ("problems", feed.problems.len().to_string()),
    ] {
        put(&format!("<div><b>{value}</b><span>{name}</span></div>"));
    }
    put("</section>\n");
    if !feed.unreadable.is_empty() {
        put(&format!("<p>Left out because you may not read them: {}.</p>\n", escaped(&feed.left_out())));
    }
    out.push_str(&treemap(feed));
    out.push_str(&savings(feed));
    let shown = shown(feed);
    for (place, model) in feed.models.iter().enumerate() {
        out.push_str(&heat_map(place, model, &shown));
    }
    out.push_str(&table(feed, &shown));
    out.push_str(&health(feed));
    out.push_str("<footer><p>Made by tierfs report. Entropy and savings come from samples of the bytes; errors are those that tierfs recorded when it encoded the weights. A cosine compares stored weights with the exact ones.</p></footer>\n</body></html>\n");
    out
}

/// Text in HTML. Names may contain anything.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            letter if letter.is_control() => out.push('\u{fffd}'),
            letter => out.push(letter),
        }
    }
    out
}

/// A name in HTML, with places at which a narrow column may break it.
fn breakable(name: &str) -> String {
    let mut out = String::new();
    for part in name.split_inclusive(['/', '.', '_']) {
        out.push_str(&escaped(part));
        if part.ends_with(['/', '.', '_']) {
            out.push_str("<wbr>");
        }
    }
    out
}

fn sum(tiers: &[(String, Bytes)]) -> Bytes {
    tiers.iter().fold(Bytes::default(), |sum, (_, bytes)| Bytes {
        logical: sum.logical + bytes.logical,
        stored: sum.stored + bytes.stored,
    })
}

fn percent(part: u64, of: u64) -> String {
    format!("{:.1} %", 100.0 * part as f64 / of.max(1) as f64)
}

/// The class of a tier's colour.
fn class(tier: &str) -> &'static str {
    match tier {
        "exact" => "exact",
        "packed" => "packed",
        "q8" => "q8",
        "q7" => "q7",
        "q5" => "q5",
        "q3" => "q3",
        "q3x" => "q3x",
        "absent" => "absent",
        _ => "mixed",
    }
}

/// The text of a rectangle, cut to its width; empty if the rectangle is too small.
fn label(text: &str, area: Area, line: f64) -> String {
    let room = ((area.width - 8.0) / LETTER).floor();
    if room < 3.0 || area.height < line * 14.0 + 6.0 {
        return String::new();
    }
    let letters: Vec<char> = text.chars().collect();
    let room = room as usize;
    let cut = if letters.len() <= room {
        text.to_owned()
    } else {
        format!("{}…", letters.iter().take(room - 1).collect::<String>())
    };
    let (x, y) = (area.x + 4.0, area.y + line * 14.0);
    format!("<text x=\"{x:.1}\" y=\"{y:.1}\">{}</text>", escaped(&cut))
}

/// Stored bytes by collection, and by tier in each.
fn treemap(feed: &Feed) -> String {
    let sizes: Vec<f64> =
        feed.collections.iter().map(|collection| sum(&collection.tiers).stored as f64).collect();
    let whole = Area { x: 0.0, y: 0.0, width: WIDTH, height: MAP_HEIGHT };
    let mut out = format!(
        "<section><h2>Stored bytes by collection and tier</h2>\n<div class=\"wide\"><svg class=\"map\" role=\"img\" aria-label=\"Treemap of stored bytes\" \
         viewBox=\"0 0 {WIDTH} {MAP_HEIGHT}\">"
    );
    for (collection, area) in feed.collections.iter().zip(squarified(&sizes, whole)) {
        if area.width * area.height <= 0.0 {
            continue;
        }
        let has_head = area.height > 40.0 && area.width > 60.0;
        let head = if has_head { 18.0 } else { 0.0 };
        let inner = Area { y: area.y + head, height: area.height - head, ..area };
        let sizes: Vec<f64> = collection.tiers.iter().map(|(_, bytes)| bytes.stored as f64).collect();
        out.push_str("<g>");
        for ((tier, bytes), area) in collection.tiers.iter().zip(squarified(&sizes, inner)) {
            if area.width * area.height <= 0.0 {
                continue;
            }
            let Area { x, y, width, height } = area;
            let (path, stored) = (escaped(&collection.path), human_part(bytes.stored, bytes.logical));
            put(
                &mut out,
                format_args!(
                    "<rect class=\"{}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" data-collection=\"{path}\" \
                 data-tier=\"{tier}\" data-stored=\"{}\" data-logical=\"{}\"><title>{path}: {tier}, {stored}</title></rect>",
                    class(tier),
                    bytes.stored,
                    bytes.logical
                ),
            );
            out.push_str(&label(tier, area, 1.0));
            out.push_str(&label(&human(bytes.stored), area, 2.0));
        }
        if has_head {
            let Area { x, y, width, height } = area;
            put(
                &mut out,
                format_args!(
                    "<rect class=\"frame\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\"/><g class=\"head\">{}</g>",
                    label(
                        &format!("{}  {}", collection.path, human(sum(&collection.tiers).stored)),
                        // Bold letters are wider.
                        Area { width: width * 0.88, ..area },
                        0.95
                    )
                ),
            );
        }
        out.push_str("</g>");
    }
    out.push_str("</svg></div>\n<p class=\"legend\">");
    for (tier, bytes) in &feed.tiers {
        put(
            &mut out,
            format_args!(
                "<span><i class=\"{}\"></i>{tier}: {} stored</span> ",
                class(tier),
                human_part(bytes.stored, bytes.logical)
            ),
        );
    }
    out.push_str("</p></section>\n");
    out
}

fn put(out: &mut String, text: std::fmt::Arguments) {
    // Writing to a string does not fail.
    out.write_fmt(text).unwrap_or_default();
}

/// A model after an imagined move: the sums of its tensors, scaled from their samples.
#[derive(Default)]
struct Would {
    stored: f64,
    errors: f64,
    squares: f64,
    products: f64,
    decoded: f64,
    tensors: usize,
}

fn savings(feed: &Feed) -> String {
    let mut out = String::from(
        "<section><h2>Savings by packing or a lower tier</h2>\n<p>One row is the sum of a model. Measured on samples of the bytes as \
         they read now, for each tensor that would shrink. A tier is counted as if every float tensor moved (<code>TIER:all</code>). \
         RMS error and cosine compare single weights before and after the move, on top of the present error. What the model computes \
         from these weights differs more.</p>\n<div class=\"wide\"><table class=\"save\"><thead><tr><th>model</th><th class=\"n\">now</th>\
         <th>move</th><th class=\"n\">stored then</th><th class=\"n\">saved</th><th class=\"n\">tensors</th>\
         <th class=\"n\">RMS error</th><th class=\"n\">cosine of weights</th></tr></thead><tbody>\n",
    );
    let mut groups = String::new();
    for model in &feed.models {
        let tensors: Vec<&Tensor> = model.tensors.iter().collect();
        let now: u64 = tensors.iter().map(|tensor| tensor.stored).sum();
        let moves = moves_of(&tensors);
        for (name, would) in &moves {
            let saved = now as f64 - would.stored;
            let (error, cosine) = if *name == "packed" {
                ("0".to_owned(), "1".to_owned())
            } else {
                let cosine = cosine(would.products, would.squares, would.decoded);
                let error = (would.errors / would.squares.max(f64::MIN_POSITIVE)).sqrt();
                (format!("{:.2} %", 100.0 * error), format!("{cosine:.6}"))
            };
            put(
                &mut out,
                format_args!(
                    "<tr><td class=\"name\">{}</td><td class=\"n\">{}</td><td><i class=\"{}\"></i>{name}</td><td class=\"n\">{}</td>\
                 <td class=\"n\">{} ({})</td><td class=\"n\">{}</td><td class=\"n\">{error}</td><td class=\"n\">{cosine}</td></tr>\n",
                    breakable(&model.path),
                    human(now),
                    class(name),
                    human(would.stored as u64),
                    human(saved as u64),
                    percent(saved as u64, now),
                    would.tensors
                ),
            );
        }
        let names: Vec<&str> = moves.iter().map(|(name, _)| *name).collect();
        if !names.is_empty() {
            groups.push_str(&groups_of(model, &names));
        }
    }
    if groups.is_empty() {
        out.push_str("<tr><td colspan=\"8\">no sampled tensor would shrink</td></tr>\n");
    }
    out.push_str("</tbody></table></div>\n");
    out.push_str(&groups);
    out.push_str("</section>\n");
    out
}

/// The moves that would save bytes of these tensors, with the sums after them. Moves that save least come first.
fn moves_of(tensors: &[&Tensor]) -> Vec<(&'static str, Would)> {
    let now: u64 = tensors.iter().map(|tensor| tensor.stored).sum();
    let first = tensors.iter().map(|tensor| rank(&tensor.tier)).min().unwrap_or(0);
    let moves = Tier::ENCODED.into_iter().filter(|tier| rank(tier.name()) > first);
    let moves = moves.map(|tier| (tier.name(), moved(tensors, tier)));
    let all = std::iter::once(("packed", pack(tensors))).chain(moves);
    let mut all: Vec<_> = all.filter(|(_, would)| would.tensors > 0 && would.stored < now as f64).collect();
    all.sort_by(|one, other| other.1.stored.total_cmp(&one.1.stored));
    all
}

/// The tensors of a model by their names without the layer, a row each, with the bytes that these moves would leave.
fn groups_of(model: &Model, names: &[&str]) -> String {
    let mut groups: BTreeMap<String, Vec<&Tensor>> = BTreeMap::new();
    for tensor in &model.tensors {
        groups.entry(layer_of(&tensor.name).0).or_default().push(tensor);
    }
    let stored = |tensors: &[&Tensor]| tensors.iter().map(|tensor| tensor.stored).sum::<u64>();
    let mut groups: Vec<(String, Vec<&Tensor>)> = groups.into_iter().collect();
    groups.sort_by_key(|(_, tensors)| std::cmp::Reverse(stored(tensors)));
    let (count, all) = (groups.len(), model.tensors.iter().collect::<Vec<_>>());
    groups.truncate(GROUPS_MAX);
    let heads: String = names
        .iter()
        .map(|name| format!("<th class=\"n\"><i class=\"{}\"></i>{name}</th>", class(name)))
        .collect();
    let mut out = format!(
        "<details><summary>{}: {count} groups of tensors</summary>\n<div class=\"wide\"><table><thead><tr>\
         <th>tensor group</th><th class=\"n\">tensors</th><th class=\"n\">now</th>{heads}</tr></thead><tbody>\n",
        breakable(&model.path)
    );
    let mut row = |class: &str, name: &str, tensors: &[&Tensor]| {
        let moves = moves_of(tensors);
        let cell = |name: &&str| {
            let found = moves.iter().find(|(move_name, _)| move_name == name);
            let text = found.map_or("-".to_owned(), |(_, would)| human(would.stored as u64));
            format!("<td class=\"n\">{text}</td>")
        };
        let cells: String = names.iter().map(cell).collect();
        put(
            &mut out,
            format_args!(
                "<tr{class}><td class=\"name\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>{cells}</tr>\n",
                breakable(name),
                tensors.len(),
                human(stored(tensors))
            ),
        );
    };
    groups.iter().for_each(|(name, tensors)| row("", name, tensors));
    row(" class=\"sum\"", "sum of the model", &all);
    let more = count.saturating_sub(GROUPS_MAX);
    let note = if more > 0 { format!("<p>{more} smaller groups are not shown.</p>") } else { String::new() };
    put(&mut out, format_args!("</tbody></table></div>{note}</details>\n"));
    out
}

fn pack(tensors: &[&Tensor]) -> Would {
    let mut would = Would::default();
    for tensor in tensors {
        let measured = tensor.measured.as_ref().filter(|_| tensor.tier == "exact" && !tensor.is_packed());
        let then =
            measured.map(|sample| tensor.bytes as f64 * sample.packed as f64 / sample.bytes.max(1) as f64);
        add(&mut would, tensor, then);
    }
    would
}

fn moved(tensors: &[&Tensor], tier: Tier) -> Would {
    let mut would = Would::default();
    for tensor in tensors {
        let sample = tensor.measured.as_ref().filter(|_| rank(&tensor.tier) < rank(tier.name()));
        let found = sample.and_then(|sample| {
            let moved = sample.moves.iter().find(|moved| moved.tier == tier)?;
            let scale = tensor.bytes as f64 / sample.bytes.max(1) as f64;
            Some((moved, sample.squares, scale))
        });
        let then = found.map(|(moved, _, scale)| moved.bytes as f64 * scale);
        if add(&mut would, tensor, then)
            && let Some((moved, squares, scale)) = found
        {
            would.errors += moved.error_squares * scale;
            would.squares += squares * scale;
            would.products += moved.products * scale;
            would.decoded += moved.squares * scale;
        }
    }
    would
}

/// Adds a tensor that would take `then` bytes after the move. Returns whether it would shrink.
fn add(would: &mut Would, tensor: &Tensor, then: Option<f64>) -> bool {
    let shrinks = then.filter(|then| *then < tensor.stored as f64);
    would.stored += shrinks.unwrap_or(tensor.stored as f64);
    would.tensors += usize::from(shrinks.is_some());
    shrinks.is_some()
}

/// The tensors that are shown: those with the most stored bytes, by their model and their place in it.
fn shown(feed: &Feed) -> BTreeSet<(usize, usize)> {
    let mut all: Vec<(u64, usize, usize)> = Vec::new();
    for (place, model) in feed.models.iter().enumerate() {
        all.extend(model.tensors.iter().enumerate().map(|(at, tensor)| (tensor.stored, place, at)));
    }
    all.sort_by_key(|(stored, place, at)| (std::cmp::Reverse(*stored), *place, *at));
    all.into_iter().take(TENSORS_MAX).map(|(_, place, at)| (place, at)).collect()
}

/// A name with its first number replaced by `*`, and that number: the layer.
fn layer_of(name: &str) -> (String, Option<u64>) {
    let mut parts: Vec<&str> = name.split('.').collect();
    let found =
        parts.iter().position(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()));
    let Some((at, layer)) = found.and_then(|at| Some((at, parts.get(at)?.parse::<u64>().ok()?))) else {
        return (name.to_owned(), None);
    };
    if let Some(part) = parts.get_mut(at) {
        *part = "*";
    }
    (parts.join("."), Some(layer))
}

/// The step of a value on a scale from 0 to `most`; `x` without a value.
fn step(value: Option<f64>, most: f64) -> String {
    match value {
        Some(value) if most > 0.0 => {
            let place = (value / most * (STEPS - 1) as f64).round().clamp(0.0, (STEPS - 1) as f64);
            format!("{place:.0}")
        }
        Some(_) => "0".to_owned(),
        None => "x".to_owned(),
    }
}

/// The heat map of a model: a row for each kind of matrix, a column for each layer. Tensors without a layer
/// come last, in the first column.
fn heat_map(place: usize, model: &Model, shown: &BTreeSet<(usize, usize)>) -> String {
    let tensors: Vec<&Tensor> = model
        .tensors
        .iter()
        .enumerate()
        .filter(|(at, _)| shown.contains(&(place, *at)))
        .map(|(_, tensor)| tensor)
        .collect();
    if tensors.len() < 2 {
        return String::new();
    }
    let mut kinds: BTreeMap<String, Vec<(Option<u64>, &Tensor)>> = BTreeMap::new();
    for tensor in &tensors {
        let (kind, layer) = layer_of(&tensor.name);
        kinds.entry(kind).or_default().push((layer, *tensor));
    }
    let layers: BTreeSet<u64> = kinds.values().flatten().filter_map(|(layer, _)| *layer).collect();
    let column: BTreeMap<u64, usize> = layers.iter().enumerate().map(|(at, layer)| (*layer, at)).collect();
    let (layered, single): (Vec<_>, Vec<_>) =
        kinds.iter().partition(|(_, cells)| cells.iter().any(|(layer, _)| layer.is_some()));
    let most = |value: fn(&Tensor) -> Option<f64>| {
        tensors.iter().filter_map(|tensor| value(tensor)).fold(0.0, f64::max)
    };
    let accesses = |tensor: &Tensor| Some((1.0 + tensor.accesses as f64).ln());
    let entropy = |tensor: &Tensor| tensor.measured.as_ref().map(Measured::entropy);
    let (most_error, most_access, most_entropy) =
        (most(Tensor::relative_error), most(accesses), most(entropy));
    let names = layered.iter().chain(&single).map(|(kind, _)| kind.chars().count()).max().unwrap_or(0);
    let left = (names.min(60) as f64 * LETTER + 10.0).ceil();
    let columns = layers.len().max(1);
    let (width, height) =
        (left + columns as f64 * CELL + 4.0, (layered.len() + single.len() + 1) as f64 * CELL + 4.0);
    let path = breakable(&model.path);
    let mut out = format!("<section class=\"heat\"><h2>{path}</h2>\n<p class=\"modes\">Colour by ");
    for (mode, name) in [("t", "tier"), ("e", "error"), ("a", "access"), ("n", "entropy")] {
        let checked = if mode == "t" { " checked" } else { "" };
        put(
            &mut out,
            format_args!(
                "<label><input type=\"radio\" name=\"mode{place}\" class=\"by-{mode}\"{checked}>{name}</label> "
            ),
        );
    }
    put(
        &mut out,
        format_args!(
            "</p>\n<div class=\"wide\"><svg class=\"cells\" role=\"img\" aria-label=\"Heat map of tensors\" viewBox=\"0 0 {width} {height}\" style=\"width:{width}px;min-width:{:.0}px\">",
            // A narrower picture would have letters of less than 8 pixels.
            width * 0.75
        ),
    );
    for (layer, at) in &column {
        let x = left + (*at as f64 + 0.5) * CELL;
        put(&mut out, format_args!("<text class=\"mid\" x=\"{x:.0}\" y=\"15\">{layer}</text>"));
    }
    for (row, (kind, cells)) in layered.iter().chain(&single).enumerate() {
        let y = (row + 1) as f64 * CELL;
        let name = if kind.chars().count() > 60 {
            let skipped = kind.chars().count() - 59;
            format!("…{}", kind.chars().skip(skipped).collect::<String>())
        } else {
            (*kind).clone()
        };
        put(
            &mut out,
            format_args!(
                "<text class=\"end\" x=\"{:.0}\" y=\"{:.0}\">{}</text>",
                left - 6.0,
                y + 15.0,
                escaped(&name)
            ),
        );
        for (layer, tensor) in *cells {
            let at = layer.and_then(|layer| column.get(&layer)).copied().unwrap_or(0);
            let x = left + at as f64 * CELL;
            let (error, access, entropy) = (
                step(tensor.relative_error(), most_error),
                step(accesses(tensor), most_access),
                step(entropy(tensor), most_entropy),
            );
            put(
                &mut out,
                format_args!(
                    "<rect class=\"{} e{error} a{access} n{entropy}\" x=\"{x:.0}\" y=\"{y:.0}\" width=\"20\" height=\"20\"><title>{}</title></rect>",
                    class(tensor.colour()),
                    escaped(&told(tensor))
                ),
            );
        }
    }
    put(
        &mut out,
        format_args!(
            "</svg></div>\n<p class=\"legend scale\">low {} high; grey: not known. Error: relative RMS, to {:.2} %. Entropy: to {:.1} bits an element.</p></section>\n",
            (0..STEPS).map(|step| format!("<i class=\"s{step}\"></i>")).collect::<String>(),
            100.0 * most_error,
            most_entropy
        ),
    );
    out
}

/// The tier of a tensor; of a mixed one also the shares.
fn tier(tensor: &Tensor) -> String {
    match tensor.shares.as_str() {
        "" => tensor.tier.clone(),
        shares => format!("{} ({shares})", tensor.tier),
    }
}

fn told(tensor: &Tensor) -> String {
    let error =
        tensor.relative_error().map_or(String::new(), |error| format!(", error {:.3} %", 100.0 * error));
    let entropy =
        tensor.measured.as_ref().map_or(String::new(), |sample| format!(", entropy {:.2}", sample.entropy()));
    let Tensor { name, dtype, shape, bits, accesses, .. } = tensor;
    let tier = tier(tensor);
    format!("{name}: {dtype} {shape}, {tier}, {bits} bits, {accesses} accesses{error}{entropy}")
}

fn table(feed: &Feed, shown: &BTreeSet<(usize, usize)>) -> String {
    let all: usize = feed.models.iter().map(|model| model.tensors.len()).sum();
    let note = match all - shown.len() {
        0 => String::new(),
        more => format!("<p>{more} tensors with fewer stored bytes are not shown.</p>\n"),
    };
    let mut out = format!("<section><h2>Tensors</h2>\n{note}");
    for (place, model) in feed.models.iter().enumerate() {
        put(
            &mut out,
            format_args!(
                "<details{}><summary>{} ({} tensors)</summary>\n<div class=\"wide\"><table class=\"tensors\"><thead><tr><th>tensor</th><th>type</th><th>shape</th><th>tier</th><th class=\"n\">bits</th>\
             <th class=\"n\">stored bytes</th><th class=\"n\">RMS error</th><th class=\"n\">cosine of weights</th><th class=\"n\">entropy</th><th class=\"n\">access</th>\
             <th class=\"n\">score</th><th>why</th></tr></thead><tbody>\n",
                if place == 0 { " open" } else { "" },
                breakable(&model.path),
                model.tensors.len()
            ),
        );
        for (_, tensor) in model.tensors.iter().enumerate().filter(|(at, _)| shown.contains(&(place, *at))) {
            let shape = if tensor.shape.is_empty() { "scalar" } else { &tensor.shape };
            let cosine = tensor.cosine().map_or("-".to_owned(), |cosine| format!("{cosine:.6}"));
            let error = if tensor.error == 0.0 { "0".to_owned() } else { format!("{:.3e}", tensor.error) };
            let entropy =
                tensor.measured.as_ref().map_or("-".to_owned(), |sample| format!("{:.2}", sample.entropy()));
            let why = [tensor.why.as_str(), tensor.unread.as_deref().unwrap_or_default()].join(" ");
            put(
                &mut out,
                format_args!(
                    "<tr><td class=\"name\">{}</td><td>{}</td><td>{}</td><td><i class=\"{}\"></i>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>\
                 <td class=\"n\">{error}</td><td class=\"n\">{cosine}</td><td class=\"n\">{entropy}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"why\">{}</td></tr>\n",
                    breakable(&tensor.name),
                    escaped(&tensor.dtype),
                    escaped(shape),
                    class(tensor.colour()),
                    escaped(&tier(tensor)),
                    tensor.bits,
                    tensor.stored,
                    tensor.accesses,
                    tensor.score,
                    escaped(why.trim())
                ),
            );
        }
        out.push_str("</tbody></table></div></details>\n");
    }
    out.push_str("</section>\n");
    out
}

fn health(feed: &Feed) -> String {
    let mut out = String::from("<section><h2>Health</h2>\n");
    if feed.problems.is_empty() {
        out.push_str("<p>No problems are known.</p>\n");
    } else {
        out.push_str("<ul class=\"problems\">");
        feed.problems.iter().for_each(|problem| put(&mut out, format_args!("<li>{}</li>", escaped(problem))));
        out.push_str("</ul>\n");
    }
    out.push_str("<div class=\"wide\"><table><thead><tr><th>collection</th><th class=\"n\">files</th><th class=\"n\">stored</th><th class=\"n\">shared</th><th>last scrub</th></tr></thead><tbody>\n");
    for collection in &feed.collections {
        let prefix = format!("{}: ", collection.path);
        let lines: Vec<&str> = feed.scrub.lines().filter_map(|line| line.strip_prefix(&prefix)).collect();
        let damaged: Vec<&str> =
            feed.scrub.lines().filter(|line| line.starts_with(&format!("{}/", collection.path))).collect();
        let scrub = if lines.is_empty() { vec!["not known"] } else { [lines, damaged].concat() };
        put(
            &mut out,
            format_args!(
                "<tr><td class=\"name\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"why\">{}</td></tr>\n",
                breakable(&collection.path),
                collection.files,
                human(sum(&collection.tiers).stored),
                human(collection.shared),
                scrub.iter().map(|line| escaped(line)).collect::<Vec<_>>().join("<br>")
            ),
        );
    }
    put(
        &mut out,
        format_args!(
            "</tbody></table></div>\n<p>Copies of pinned files: {}. Logs: {}.</p></section>\n",
            human(feed.pinned),
            human(feed.logs)
        ),
    );
    out
}

#[cfg(test)]
mod tests {
    use super::{escaped, layer_of, step};

    #[test]
    fn names_cannot_leave_the_text_that_they_stand_in() {
        let name = "<script>&\"'\u{0}\u{1b}[2J</script>";
        assert_eq!(escaped(name), "&lt;script&gt;&amp;&quot;&#39;\u{fffd}\u{fffd}[2J&lt;/script&gt;");
    }

    #[test]
    fn the_first_number_of_a_name_is_its_layer() {
        assert_eq!(layer_of("model.layers.12.mlp.up.0"), ("model.layers.*.mlp.up.0".to_owned(), Some(12)));
        assert_eq!(layer_of("norm.weight"), ("norm.weight".to_owned(), None));
        assert_eq!(layer_of("w.99999999999999999999999"), ("w.99999999999999999999999".to_owned(), None));
    }

    #[test]
    fn steps_of_a_scale_reach_from_nothing_to_the_most() {
        assert_eq!([step(Some(0.0), 2.0), step(Some(1.0), 2.0), step(Some(2.0), 2.0)], ["0", "4", "8"]);
        assert_eq!([step(Some(0.0), 0.0), step(None, 1.0)], ["0", "x"]);
    }
}
