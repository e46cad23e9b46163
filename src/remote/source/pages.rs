//! Lists of files as web servers make them: pages of nginx, Apache, lighttpd, Caddy and `python -m http.server`, and the JSON of
//! nginx (`autoindex_format json`) and Caddy.
//!
//! Of an HTML page only links count: those that lead one name below the page. Sizes and times in it are rounded, or absent.
//! A parser of HTML would bring the whole tree of elements for this.

use std::collections::BTreeMap;

use percent_encoding::percent_decode_str;
use reqwest::Url;

use crate::remote::client::failure::Failure;
use crate::remote::source::web::Page;

/// The most bytes of an escape of HTML, such as `&#x0026;`.
const ESCAPE_BYTES_MAX: usize = 10;

/// A name in a list.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Entry {
    pub is_directory: bool,
}

/// The names of a page.
pub(super) fn entries(page: &Page) -> Result<BTreeMap<String, Entry>, Failure> {
    if page.kind.starts_with("application/json") {
        return of_json(&page.json()?).ok_or_else(no_list);
    }
    let text = String::from_utf8_lossy(&page.body);
    let (links, mut found, mut is_list) = (links(&text), BTreeMap::new(), false);
    for link in &links {
        match below(&page.url, link) {
            Some((name, is_directory)) => {
                found.insert(name, Entry { is_directory });
            }
            // Links to the directory above, and to the same list in another order.
            None => is_list |= link.starts_with("..") || link.starts_with("?C="),
        }
    }
    let titles = ["Index of ", "Directory listing for "];
    if found.is_empty() && !is_list && !titles.iter().any(|title| text.contains(title)) {
        return Err(no_list());
    }
    Ok(found)
}

fn no_list() -> Failure {
    let text = "it has no list of files that tierfs can read: a page of links (autoindex of nginx or Apache, \
                python -m http.server) or the JSON of nginx or Caddy; name a single file instead";
    Failure::Refused(text.to_owned())
}

/// Whether a name can be one part of a path.
pub(super) fn is_name(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && !name.contains(['/', '\0'])
}

/// The list of nginx or Caddy.
fn of_json(list: &serde_json::Value) -> Option<BTreeMap<String, Entry>> {
    let mut found = BTreeMap::new();
    for entry in list.as_array()? {
        let name = entry.get("name")?.as_str()?;
        let is_directory = entry.get("type").is_some_and(|kind| kind == "directory")
            || entry.get("is_dir").is_some_and(|is_directory| is_directory == true);
        let name = name.strip_suffix('/').unwrap_or(name);
        if is_name(name) {
            found.insert(name.to_owned(), Entry { is_directory });
        }
    }
    Some(found)
}

/// The name that a link leads to, and whether it is a directory. `None` if it does not lead one name below the page.
fn below(page: &Url, link: &str) -> Option<(String, bool)> {
    let to = page.join(link).ok()?;
    if to.origin() != page.origin() || to.query().is_some() || to.fragment().is_some() {
        return None;
    }
    // A page without a slash at its end is one of the directory above.
    let (directory, _) = page.path().rsplit_once('/')?;
    let rest = to.path().strip_prefix(directory)?.strip_prefix('/')?;
    let (name, is_directory) = rest.strip_suffix('/').map_or((rest, false), |name| (name, true));
    if name.contains('/') {
        return None;
    }
    let name = percent_decode_str(name).decode_utf8().ok()?.into_owned();
    is_name(&name).then_some((name, is_directory))
}

/// The values of `href` of all elements `a`. Each byte is looked at once, whatever the page is.
fn links(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some((_, behind)) = rest.split_once('<') {
        rest = behind;
        if let Some(attributes) =
            behind.strip_prefix(['a', 'A']).filter(|rest| rest.starts_with(char::is_whitespace))
        {
            let (link, behind) = href(attributes);
            found.extend(link);
            rest = behind;
        }
    }
    found
}

/// The value of `href`, of attributes that end with `>`, and the text behind it.
fn href(attributes: &str) -> (Option<String>, &str) {
    let mut rest = attributes;
    loop {
        rest = rest.trim_start();
        let ends_name = |letter: char| letter == '=' || letter == '>' || letter.is_whitespace();
        let Some(end) = rest.find(ends_name) else { return (None, "") };
        let (name, behind) = rest.split_at(end);
        let behind = behind.trim_start();
        let Some(value) = behind.strip_prefix('=') else {
            if behind.starts_with('>') {
                return (None, behind);
            }
            // An attribute without a value.
            rest = behind;
            continue;
        };
        let value = value.trim_start();
        let quote = value.chars().next().filter(|letter| matches!(letter, '"' | '\''));
        let split = match quote {
            Some(quote) => value[1..].split_once(quote),
            None => value
                .find(|letter: char| letter == '>' || letter.is_whitespace())
                .map(|end| value.split_at(end)),
        };
        let Some((value, behind)) = split else { return (None, "") };
        if name.eq_ignore_ascii_case("href") {
            return (Some(unescaped(value)), behind);
        }
        rest = behind;
    }
}

/// A value without the escapes of HTML that servers write.
fn unescaped(value: &str) -> String {
    let mut out = String::with_capacity(value.len());
    let mut rest = value;
    while let Some((before, behind)) = rest.split_once('&') {
        out.push_str(before);
        let end = behind.bytes().take(ESCAPE_BYTES_MAX).position(|byte| byte == b';');
        let escape = end.and_then(|end| Some((letter(behind.get(..end)?)?, behind.get(end + 1..)?)));
        match escape {
            Some((letter, behind)) => {
                out.push(letter);
                rest = behind;
            }
            None => {
                out.push('&');
                rest = behind;
            }
        }
    }
    out.push_str(rest);
    out
}

/// The letter that an escape stands for.
fn letter(name: &str) -> Option<char> {
    match name {
        "amp" => Some('&'),
        "lt" => Some('<'),
        "gt" => Some('>'),
        "quot" => Some('"'),
        "apos" => Some('\''),
        _ => {
            let number = name.strip_prefix('#')?;
            let number = match number.strip_prefix(['x', 'X']) {
                Some(digits) => u32::from_str_radix(digits, 16),
                None => number.parse(),
            };
            char::from_u32(number.ok()?)
        }
    }
}

#[cfg(test)]
mod tests {
    use reqwest::Url;

    use super::{Page, entries, href, links};

    fn page(kind: &str, body: &str) -> Page {
        let url = Url::parse("http://host/models/").unwrap();
        Page { url, kind: kind.to_owned(), link: None, digest: None, body: body.as_bytes().to_vec() }
    }

    fn names(body: &str) -> Vec<(String, bool)> {
        let found = entries(&page("text/html", body)).unwrap();
        found.into_iter().map(|(name, entry)| (name, entry.is_directory)).collect()
    }

    #[test]
    fn pages_of_servers_list_the_same_names() {
        let wanted = vec![("a b&c.bin".to_owned(), false), ("sub".to_owned(), true)];
        // As nginx 1.22, Apache 2.4, Python 3.11, Caddy 2 and lighttpd 1.4 write them.
        for body in [
            "<html>\r\n<head><title>Index of /models/</title></head>\r\n<body>\r\n<h1>Index of /models/</h1><hr><pre>\
             <a href=\"../\">../</a>\r\n<a href=\"sub/\">sub/</a>   23-Nov-2026 00:00    -\r\n\
             <a href=\"a%20b%26c.bin\">a b&amp;c.bin</a> 23-Nov-2026 00:00 5\r\n</pre>",
            "<tr><th><a href=\"?C=N;O=D\">Name</a></th><th><a href=\"?C=M;O=A\">Last modified</a></th></tr>\
             <tr><td valign=\"top\"><img src=\"/icons/back.gif\" alt=\"[PARENTDIR]\"></td><td>\
             <a href=\"/\">Parent Directory</a></td></tr><tr><td><a href=\"a%20b&amp;c.bin\">a b&amp;c.bin</a>\
             </td></tr><tr><td><a href=\"sub/\">sub/</a></td></tr>",
            "<title>Directory listing for /models/</title><ul>\n<li><a href=\"a%20b%26c.bin\">a b&amp;c.bin</a></li>\n\
             <li><a href=\"sub/\">sub/</a></li>\n</ul>",
            "<link rel=\"stylesheet\" href=\"style.css\"><A class=x HREF='./sub/'>sub</A><a href=./a%20b&#38;c.bin>a</a>",
            "<a href=\"http://host/models/sub/\">sub</a><a href=\"/models/a%20b&#x26;c.bin\">a</a><a href=\"#top\">top</a>\
             <a href=\"https://elsewhere/models/x\">x</a><a href=\"/models/sub/deep/y\">y</a><a href=\"/other\">z</a>",
        ] {
            assert_eq!(names(body), wanted, "{body}");
        }
    }

    #[test]
    fn an_empty_list_is_told_from_a_page_that_is_none() {
        assert!(names("<h1>Index of /models/</h1><a href=\"../\">../</a>").is_empty());
        assert!(names("<title>Directory listing for /models/</title>").is_empty());
        for body in ["<html><body>Welcome</body></html>", "", "<a href=\"https://elsewhere/\">x</a>"] {
            assert!(entries(&page("text/html", body)).is_err(), "{body}");
        }
        for body in ["{}", "[1]", "[{\"size\": 1}]", "nothing"] {
            assert!(entries(&page("application/json", body)).is_err(), "{body}");
        }
    }

    #[test]
    fn lists_in_json_tell_directories_from_files() {
        let nginx = "[{\"name\":\"sub\",\"type\":\"directory\",\"mtime\":\"Mon, 23 Nov 2026 00:00:01 GMT\"},\
                     {\"name\":\"a.bin\",\"type\":\"file\",\"mtime\":\"Mon, 23 Nov 2026 00:00:01 GMT\",\"size\":5}]";
        let caddy = "[{\"name\":\"sub/\",\"size\":4096,\"url\":\"./sub/\",\"mod_time\":\"2026-11-23T00:00:01Z\",\
                     \"mode\":1,\"is_dir\":true,\"is_symlink\":false},{\"name\":\"a.bin\",\"size\":5,\"url\":\"./a.bin\",\
                     \"mod_time\":\"2026-11-23T00:00:01.5Z\",\"mode\":1,\"is_dir\":false,\"is_symlink\":false}]";
        for body in [nginx, caddy] {
            let found = entries(&page("application/json; charset=utf-8", body)).unwrap();
            assert!(found["sub"].is_directory);
            assert!(!found["a.bin"].is_directory);
        }
    }

    #[test]
    fn names_that_lead_elsewhere_are_left_out() {
        let body = "<a href=\"../\">..</a><a href=\"%2e%2e/\">x</a><a href=\"..%2fsecret\">x</a><a href=\"a%00b\">x</a>\
                    <a href=\"%ff\">x</a><a href=\".\">x</a><a href=\"//\">x</a><a href=\"javascript:x\">x</a>";
        assert!(names(body).is_empty(), "{:?}", names(body));
        let json = "[{\"name\":\"..\"},{\"name\":\"a/b\"},{\"name\":\"\"},{\"name\":\"a\\u0000\"}]";
        assert!(entries(&page("application/json", json)).unwrap().is_empty());
    }

    #[test]
    fn broken_elements_end_nothing_but_themselves() {
        assert_eq!(links("<a href=\"x\"><a href=<a <a href='y'><a"), ["x", "<a", "y"]);
        for broken in ["href", "href=", "href=\"x", " ", "", "=x>", "x y z", ">href=x>"] {
            assert_eq!(href(broken).0, None, "{broken}");
        }
    }
}
