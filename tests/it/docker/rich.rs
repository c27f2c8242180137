//! What a cell shows beside its text: pictures, tables, values, files.

use serde_json::{Value, json};

use super::helpers::{S, assert_ended, list, number, printed, raised, session, session_with, text};
use crate::support::Daemon;

/// The start of a PNG file, as base64 has it.
const PNG: &str = "iVBORw0KGgo";

#[track_caller]
fn shown(daemon: &Daemon, code: &str) -> Vec<Value> {
    let result = daemon.run(S, code);
    assert_ended(&result, "success", "ok", 0);
    assert_eq!((text(&result, "stdout"), text(&result, "stderr")), ("", ""));
    list(&result, "displays").iter().map(|display| display["mime"].clone()).collect()
}

#[track_caller]
fn assert_pictures(displays: &[Value], count: usize) {
    assert_eq!(displays.len(), count, "{displays:?}");
    for mime in displays {
        assert_eq!(mime.as_object().map(serde_json::Map::len), Some(1), "{mime}");
        assert!(text(mime, "image/png").starts_with(PNG));
    }
}

#[test]
fn a_chinese_plot_is_a_picture_without_a_glyph_warning() {
    let Some(daemon) = session() else { return };
    let code = "import matplotlib.pyplot as plt\nplt.title(\"中文\"); plt.plot([1,4,9])";
    let result = daemon.run(S, code);
    assert_ended(&result, "success", "ok", 0);
    assert_eq!((text(&result, "stdout"), text(&result, "stderr")), ("", ""));
    let displays: Vec<Value> = list(&result, "displays").iter().map(|it| it["mime"].clone()).collect();
    assert_pictures(&displays, 1);
    // The warning would be there if the font were not.
    let code = "plt.rcParams['font.sans-serif'] = ['DejaVu Sans']\nplt.rcParams['font.family'] = 'DejaVu Sans'\n\
                plt.title('中文'); plt.plot([1])";
    let result = daemon.run(S, code);
    assert!(text(&result, "stderr").contains("Glyph"), "{}", text(&result, "stderr"));
}

#[test]
fn figures_are_shown_once_each_in_their_order() {
    let Some(daemon) = session() else { return };
    assert_pictures(&shown(&daemon, "import matplotlib.pyplot as plt\nplt.plot([1]); plt.show()"), 1);
    let code = "for n in range(3):\n    plt.figure(); plt.plot([n])";
    assert_pictures(&shown(&daemon, code), 3);
    // One that was shown, closed, or never drawn on is not shown again.
    assert_eq!(shown(&daemon, "1"), [] as [Value; 0]);
    assert_eq!(shown(&daemon, "plt.plot([1]); plt.close()"), [] as [Value; 0]);
    assert_eq!(shown(&daemon, "plt.figure()\nNone"), [] as [Value; 0]);
    // What was drawn before an exception is worth seeing.
    let result = raised(&daemon, "plt.plot([1, 2])\n1 / 0", "ZeroDivisionError");
    assert_eq!(list(&result, "displays").len(), 1);
    // A copy of the session draws too, and leaves the original's figures alone.
    let fork = daemon.run_with(S, json!({"code": "plt.plot([3]); plt.show()", "mode": "fork"}));
    assert_eq!(list(&fork, "displays").len(), 1, "{}", fork["status"]);
}

#[test]
pub fn display_shows_the_richest_forms() {
    let Some(daemon) = session() else { return };
    let code = "class Rich:\n    def _repr_html_(self): return '<b>bold</b>'\n    \
                def _repr_markdown_(self): return '**bold**'\n    def _repr_json_(self): return {'bold': [1, None]}\n\
                class Picture:\n    def _repr_png_(self): return b'\\x89PNG\\r\\n\\x1a\\n'\n\
                class Broken:\n    def _repr_html_(self): raise ValueError\n    def __repr__(self): return 'plain'\n\
                display(Rich(), Picture()); display('text'); display(Broken())";
    let mut displays = shown(&daemon, code);
    for display in &mut displays[..2] {
        let plain =
            display.as_object_mut().and_then(|forms| forms.remove("text/plain")).expect("for terminals");
        assert!(plain.as_str().is_some_and(|plain| plain.starts_with("<__main__.")), "{plain}");
    }
    let rich = json!({"text/html": "<b>bold</b>", "text/markdown": "**bold**", "application/json": {"bold": [1, null]}});
    assert_eq!(
        displays,
        [
            rich.clone(),
            json!({"image/png": "iVBORw0KGgo="}),
            json!({"text/plain": "'text'"}),
            json!({"text/plain": "plain"}),
        ]
    );
    // The value of a last expression has them too, and is no display.
    let result = daemon.run(S, "Rich()");
    assert_eq!((&result["result"]["mime"], list(&result, "displays").len()), (&rich, 0));
    assert!(text(&result, "/result/repr").starts_with("<__main__.Rich object at "), "{result:#}");
    assert_eq!(text(&result, "/result/type"), "Rich");
    // A display comes after the lines that were printed before it.
    daemon.run(S, "print('before'); display(1)");
    let events = daemon.events(S, 0);
    let place =
        events.iter().position(|event| event["type"] == "display" && event["cell"] == 3).expect("one");
    let before = events[..place].iter().filter(|event| event["type"] == "output" && event["cell"] == 3);
    assert_eq!(before.map(|event| text(event, "text")).collect::<String>(), "before\n");
}

#[test]
pub fn the_last_value_is_returned() {
    let Some(daemon) = session() else { return };
    let last = |code: &str| {
        let result = daemon.run(S, code);
        (text(&result, "/result/repr").to_owned(), text(&result, "/result/type").to_owned())
    };
    let pair = |repr: &str, kind: &str| (repr.to_owned(), kind.to_owned());
    assert_eq!(last("40 + 2"), pair("42", "int"));
    assert_eq!(last("_ + 1"), pair("43", "int"));
    assert_eq!(last("x = 1\n[x, 'y']"), pair("[1, 'y']", "list"));
    assert_eq!(last("import decimal\ndecimal.Decimal('1.50')"), pair("Decimal('1.50')", "decimal.Decimal"));
    assert_eq!(last("import asyncio\nawait asyncio.sleep(0, 'awaited')"), pair("'awaited'", "str"));
    assert_eq!(daemon.run(S, "x = 5")["result"], json!(null));
    assert_eq!(daemon.run(S, "print('x')")["result"], json!(null));
    // A long one is cut, and says so by its end.
    let (repr, _) = last("'a' * 1_000_000");
    assert!(repr.ends_with('…') && repr.chars().count() == 20_000, "{}", repr.len());
}

#[test]
fn a_table_of_pandas_is_html() {
    let Some(daemon) = session() else { return };
    let result = daemon
        .run(S, "import pandas as pd\ntable = pd.DataFrame({'城市': ['北京', '上海'], 'n': [1, 2]})\ntable");
    assert_ended(&result, "success", "ok", 0);
    let html = text(&result, "/result/mime/text~1html");
    assert!(html.contains("<table") && html.contains("<td>北京</td>"), "{html}");
    assert!(text(&result, "/result/repr").contains("上海"), "{result:#}");
    let displays = shown(&daemon, "display(table)");
    assert_eq!(displays.len(), 1);
    assert_eq!(text(&displays[0], "text/html"), html);
    let listing = daemon.http("GET", "/v1/sessions/s/variables", b"").expect_status(200);
    let variable = &listing["variables"][0];
    assert_eq!((text(variable, "name"), text(variable, "shape")), ("table", "(2, 2)"));
}

#[test]
pub fn artifacts_are_files_that_changed() {
    let Some(daemon) = session() else { return };
    let changed = |code: &str| daemon.run(S, code)["artifacts"].clone();
    let code = "import os\nos.makedirs('out/deep')\nopen('out/deep/a.csv', 'w').write('1,2')\nopen('b', 'w').write('b')";
    assert_eq!(
        changed(code),
        json!([
            {"path": "b", "bytes": 1, "change": "new"},
            {"path": "out/deep/a.csv", "bytes": 3, "change": "new"},
        ])
    );
    assert_eq!(changed("x = open('b').read()"), json!([]));
    assert_eq!(
        changed("open('b', 'a').write('more')"),
        json!([{"path": "b", "bytes": 5, "change": "modified"}])
    );
    // The new text is as long as the one before.
    assert_eq!(
        changed("open('b', 'w').write('other')"),
        json!([{"path": "b", "bytes": 5, "change": "modified"}])
    );
    let code = "os.rename('b', 'c')\nos.remove('out/deep/a.csv')";
    assert_eq!(
        changed(code),
        json!([
            {"path": "c", "bytes": 5, "change": "new"},
            {"path": "b", "bytes": 0, "change": "removed"},
            {"path": "out/deep/a.csv", "bytes": 0, "change": "removed"},
        ])
    );
    // A file of the host's is not the cell's; one outside of the workspace is none.
    daemon.http("PUT", "/v1/sessions/s/files/given", b"x").expect_status(200);
    let result = daemon.run(S, "open('/tmp/aside', 'w').write('x')");
    assert_eq!(result["artifacts"], json!([]));
    daemon.http("DELETE", "/v1/sessions/s/files/given", b"").expect_status(200);
    assert_eq!(changed("x = 2"), json!([]));
    // Files of a cell that ends badly are there, and are listed.
    let result = daemon.run(S, "open('crash', 'w').write('x')\nos._exit(1)");
    assert_eq!(result["artifacts"], json!([{"path": "crash", "bytes": 1, "change": "new"}]));
    // A link is no file, and is never followed.
    assert_eq!(changed("import os\nos.symlink('/etc/passwd', 'link')\nos.symlink('/', 'root')"), json!([]));
}

#[test]
pub fn more_artifacts_than_a_result_lists_are_said_to_be_more() {
    let Some(daemon) = session() else { return };
    let result = daemon.run(S, "for n in range(250): open(f'f{n:03}', 'w').close()");
    assert_eq!((list(&result, "artifacts").len(), &result["truncated"]["artifacts"]), (200, &json!(true)));
    let result = daemon.run(S, "open('f000', 'w').write('x')");
    assert_eq!(result["artifacts"], json!([{"path": "f000", "bytes": 1, "change": "modified"}]));
    assert_eq!(result["truncated"]["artifacts"], json!(false));
}

#[test]
pub fn displays_beyond_the_bounds_are_counted() {
    let Some(daemon) = session_with("", json!({})) else { return };
    let result = daemon.run(S, "for n in range(50): display(n)");
    let displays = list(&result, "displays");
    assert_eq!((displays.len(), number(&result, "/truncated/displays")), (32, 18));
    assert_eq!(displays[31]["mime"], json!({"text/plain": "31"}));
    // One that is too large is counted, and the next is shown.
    let code = "class Html:\n    def __init__(self, n): self.n = n\n    def _repr_html_(self): return 'x' * self.n\n\
                display(Html(5 << 20), Html(5 << 20), Html(5 << 20), Html(5 << 20), Html(3))";
    let result = daemon.run(S, code);
    assert_eq!((list(&result, "displays").len(), number(&result, "/truncated/displays")), (4, 1));
    assert_eq!(text(&result["displays"][3]["mime"], "text/html"), "xxx");
    assert_eq!(printed(&daemon, "print('fine')"), "fine\n");
    assert_eq!(number(&daemon.run(S, "display(1)"), "/truncated/displays"), 0);
}
