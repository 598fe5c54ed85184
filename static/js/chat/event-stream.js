// Server-sent events of the server: the JSON after `data:`, one line per event.

export class EventReader {
  #rest = "";

  // The events that are complete with this piece of the stream.
  feed(text) {
    const lines = (this.#rest + text).split("\n");
    this.#rest = lines.pop();
    const data = lines.filter((line) => line.startsWith("data: "));
    return data.map((line) => JSON.parse(line.slice(6)));
  }
}
