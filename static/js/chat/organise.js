// The dialogs about a conversation: its title, folder and pin; another model for a question.

import { confirmed, dialog } from "../confirm.js";
import { History } from "./history.js";

// Resolve to the fields of the head as they are wanted, null if nothing is to change.
export async function askToOrganise(head) {
  const asked = dialog("organise");
  const { title, folder, pinned } = asked.querySelector("form").elements;
  title.value = head.title;
  folder.value = head.folder ?? "";
  pinned.checked = Boolean(head.pinned);
  const names = (await History.folders()).map((name) => new Option(name));
  asked.querySelector("datalist").replaceChildren(...names);
  if (!(await confirmed("organise"))) return null;
  const name = title.value.trim() || head.title;
  const titled = name === head.title ? head.titled : "user";
  return { title: name, titled, folder: folder.value.trim(), pinned: pinned.checked };
}

// Resolve to the model that is chosen among these, "" if none is.
export async function askForModel(models) {
  const asked = dialog("versus");
  const select = asked.querySelector("select");
  select.replaceChildren(...models.map((id) => new Option(id, id)));
  return (await confirmed("versus")) ? select.value : "";
}
