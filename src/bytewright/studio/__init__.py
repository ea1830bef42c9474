"""The studio: one local page with views of the runs, tokenizers and models below a folder.

    app         the list of views, the page, the checks before every request, and the process
    context     `Studio`, an argument of every view (folder, models, worker threads), streams of events, and
                the text of a request
    folder      finds runs, tokenizers and reports below the folder, and maps ids of requests to them
    models      loads the models of runs, at most two at a time
    true_tokens the true probabilities of the storybook, with a cache
    watch       the state and the records of all runs, read incrementally
    runs, tokenizers, write, inside, calculator    the endpoints of one view each

Depends on the packages of the extra `serve`, and reuses the checks of `serve`.

**A view** is a Python module with endpoints and an ES module with the page. To add the view NAME:

1. Write `studio/NAME.py` with `make_routes(studio: Studio) -> list[BaseRoute]`. The paths of the routes
   start with `/api/NAME`. Handlers are `async def handle(request) -> Response`. Read a body with
   `serve.protocol.read_body`, answer with `serve.protocol.json_response`, and stream with
   `context.EventStream`. Raise a `BytewrightError` for a wrong request: the client gets status 400 and the
   sentence of the error. Work that takes more than a millisecond runs in `await studio.compute(function)`.
   Hold `StudioModel.lock` while a model runs.
2. Add the module to `app.VIEWS`.
3. Write `static/views/NAME.js`, which exports `mount(element, context)`; `static/views.js` documents the
   interface and has the list of views. Add one line to it. Styles of the view go to `static/style.css`, or
   to `static/views/NAME.css`, which `static/index.html` links.

**Ids.** A request never contains a path of the file system. `Studio.folder` finds runs and tokenizers by
scanning; `folder.find_run(id)` returns the `Run` of an id, or raises `RejectedError` with status 404. The
endpoint `/api/runs` lists the runs with their ids, and `/api/tokenizer` the tokenizers.

**Safety.** The studio writes no files. The Content-Security-Policy allows scripts and styles from files of
this package only. JavaScript inserts data as text (`lib/dom.js`), never as markup.
"""
