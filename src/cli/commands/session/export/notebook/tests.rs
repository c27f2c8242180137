use super::*;
use crate::protocol::exit_codes::tests::result;
use crate::protocol::result::{ExceptionView, Reason, StateKind, ValueView};

/// The events of a session, told in few words.
#[derive(Default)]
struct Story {
    notebook: Notebook,
}

impl Story {
    fn tell(&mut self, event: Value) -> &mut Self {
        self.notebook.take(serde_json::from_value(event).expect("an event")).expect("room");
        self
    }

    fn queued(&mut self, cell: CellNumber, mode: &str, code: &str) -> &mut Self {
        self.tell(json!({"type": "cell_queued", "cell": cell, "mode": mode, "code": code, "timeout_s": 30.0}))
    }

    fn ended(&mut self, cell: CellNumber, change: impl FnOnce(&mut ExecutionResult)) -> &mut Self {
        self.tell(json!({"type": "cell_started", "cell": cell}));
        let mut result = ExecutionResult { cell, ..result(Status::Success, Reason::Ok, Some(0)) };
        change(&mut result);
        self.notebook.take(EventBody::CellFinished { result: Box::new(result) }).expect("room");
        self
    }

    fn cells(&self) -> Vec<Value> {
        let text = self.notebook.text().expect("JSON");
        let notebook: Value = serde_json::from_slice(&text).expect("JSON");
        assert_eq!((&notebook["nbformat"], &notebook["nbformat_minor"]), (&json!(4), &json!(5)));
        notebook["cells"].as_array().expect("a list").clone()
    }
}

#[test]
fn what_a_cell_showed_is_in_its_order() {
    let mut story = Story::default();
    story.queued(1, "main", "print(1)");
    for (stream, text) in [("stdout", "a"), ("stdout", "b\n"), ("stderr", "c\n")] {
        story.tell(json!({"type": "output", "cell": 1, "stream": stream, "text": text}));
    }
    story.tell(json!({"type": "output", "cell": null, "stream": "stdout", "text": "of no cell"}));
    let small = "application/vnd.belljar.small-picture";
    let mime = json!({"image/png": "iVBO", "text/x": 7, "application/json": [1], small: "iVBO"});
    story.tell(json!({"type": "display", "cell": 1, "mime": mime}));
    story.ended(1, |result| {
        let mime = Map::from_iter([("text/html".to_owned(), json!("<b>2</b>"))]);
        result.result = Some(ValueView { repr: "2".into(), type_name: "int".into(), mime });
    });
    let cells = story.cells();
    assert_eq!(
        cells,
        [
            json!({"id": "cell-1", "cell_type": "code", "metadata": {}, "execution_count": 1, "source": "print(1)",
            "outputs": [
                {"output_type": "stream", "name": "stdout", "text": "ab\n"},
                {"output_type": "stream", "name": "stderr", "text": "c\n"},
                {"output_type": "display_data", "metadata": {}, "data": {"image/png": "iVBO", "application/json": [1]}},
                {"output_type": "execute_result", "metadata": {}, "execution_count": 1,
                    "data": {"text/plain": "2", "text/html": "<b>2</b>"}},
            ]})
        ]
    );
}

#[test]
fn exceptions_and_crashes_are_errors() {
    let mut story = Story::default();
    story.queued(1, "main", "1 / 0").queued(2, "main", "crash()");
    story.ended(1, |result| {
        result.status = Status::Failure;
        let traceback = "Traceback:\n  1 / 0\nZeroDivisionError: no\n".into();
        let (type_name, value) = ("ZeroDivisionError".into(), "no".into());
        result.exception = Some(ExceptionView { type_name, value, repr: String::new(), traceback });
    });
    story.ended(2, |result| {
        (result.status, result.reason, result.exit_code) = (Status::Crashed, Reason::Signal, Some(-11));
        (result.state.kind, result.state.restored_to) = (StateKind::Restored, Some(1));
        result.truncated.displays = 3;
    });
    let cells = story.cells();
    let traceback = ["Traceback:", "  1 / 0", "ZeroDivisionError: no"];
    let raised =
        json!({"output_type": "error", "ename": "ZeroDivisionError", "evalue": "no", "traceback": traceback});
    assert_eq!(cells[0]["outputs"], json!([raised]));
    let [told, crashed] = cells[1]["outputs"].as_array().expect("a list").as_slice() else {
        panic!("{cells:?}")
    };
    assert_eq!(
        told["text"],
        "belljar: 3 displays were too many or too large, and are left out\n\
         belljar: variables are back as after cell 1\n"
    );
    assert_eq!((&told["name"], &crashed["ename"]), (&json!("stderr"), &json!("crashed")));
    assert!(crashed["evalue"].as_str().is_some_and(|why| why.starts_with("the cell crashed: ")), "{crashed}");
}

#[test]
fn only_cells_that_count_are_written() {
    let mut story = Story::default();
    story.queued(1, "main", "kept").ended(1, |_| {});
    story.queued(2, "main", "undone").ended(2, |_| {});
    story.queued(3, "fork", "a copy").ended(3, |_| {});
    story.queued(4, "command", "ls").ended(4, |_| {});
    story.queued(5, "main", "waits").tell(json!({"type": "undone", "state_of": 1}));
    story.tell(json!({"type": "cell_queued", "cell": 6, "mode": "main", "code": "again", "timeout_s": 1.0, "replays": 1}));
    let cells = story.cells();
    let sources: Vec<&str> = cells.iter().filter_map(|cell| cell["source"].as_str()).collect();
    assert_eq!(sources, ["kept", "waits"]);
    assert_eq!(cells[1]["execution_count"], Value::Null);
}

#[test]
fn more_than_a_notebook_holds_is_refused() {
    let mut story = Story::default();
    story.queued(1, "main", "flood");
    let text = "x".repeat(16 << 20);
    let flood =
        || EventBody::Output { cell: Some(1), stream: Stream::Stdout, text: text.clone(), base64: None };
    let refused = (0..=8).find_map(|_| story.notebook.take(flood()).err()).expect("a bound");
    assert!(refused.message.contains("128 MiB"), "{refused}");
}
