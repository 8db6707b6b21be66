import { defaultKeymap, history, historyKeymap } from '@codemirror/commands';
import {
  bracketMatching,
  defaultHighlightStyle,
  HighlightStyle,
  indentOnInput,
  type LanguageSupport,
  syntaxHighlighting,
} from '@codemirror/language';
import { highlightSelectionMatches, search, searchKeymap } from '@codemirror/search';
import { EditorState, type Extension } from '@codemirror/state';
import {
  drawSelection,
  EditorView,
  highlightActiveLine,
  highlightActiveLineGutter,
  keymap,
  lineNumbers,
} from '@codemirror/view';
import { tags } from '@lezer/highlight';

type Language = () => Promise<LanguageSupport>;

const javascript: Language = async () =>
  (await import('@codemirror/lang-javascript')).javascript({ jsx: true, typescript: true });
const yaml: Language = async () => (await import('@codemirror/lang-yaml')).yaml();

/** By extension of the file's name. */
const LANGUAGES: Readonly<Record<string, Language>> = {
  css: async () => (await import('@codemirror/lang-css')).css(),
  html: async () => (await import('@codemirror/lang-html')).html(),
  js: javascript,
  jsx: javascript,
  mjs: javascript,
  ts: javascript,
  tsx: javascript,
  json: async () => (await import('@codemirror/lang-json')).json(),
  md: async () => (await import('@codemirror/lang-markdown')).markdown(),
  py: async () => (await import('@codemirror/lang-python')).python(),
  yaml,
  yml: yaml,
};

const darkHighlight = HighlightStyle.define([
  { tag: tags.keyword, color: '#ff8f86' },
  { tag: [tags.string, tags.special(tags.string)], color: '#a5d6ff' },
  { tag: [tags.number, tags.bool, tags.null], color: '#7fc4ff' },
  { tag: tags.comment, color: '#98a3b0' },
  { tag: [tags.function(tags.variableName), tags.heading], color: '#d7b4ff' },
  { tag: [tags.typeName, tags.propertyName, tags.tagName], color: '#7ee29b' },
]);

const THEME = {
  '&': { backgroundColor: 'var(--panel)', color: 'var(--text)', fontSize: '13px' },
  '.cm-content, .cm-gutters': { fontFamily: 'var(--mono)' },
  '.cm-gutters': {
    backgroundColor: 'var(--sunk)',
    color: 'var(--muted)',
    borderRight: '1px solid var(--line)',
  },
  '.cm-activeLine, .cm-activeLineGutter': { backgroundColor: 'var(--accent-soft)' },
  '.cm-cursor': { borderLeftColor: 'var(--text)' },
  '.cm-panels': { backgroundColor: 'var(--sunk)', color: 'var(--text)' },
};

export interface EditorOptions {
  readonly parent: HTMLElement;
  readonly label: string;
  readonly name: string;
  readonly text: string;
  readonly line: number | undefined;
  readonly isDark: boolean;
  /** The text can be read and copied, but not changed. */
  readonly isReadOnly: boolean;
  readonly onChange: () => void;
  readonly onSave: () => void;
}

/** An editor for the text of a file. */
export async function openEditor(options: EditorOptions): Promise<EditorView> {
  const { parent, name, text, line, isDark, isReadOnly, onChange, onSave, label } = options;
  const language = LANGUAGES[name.split('.').at(-1)?.toLowerCase() ?? ''];
  const save = (): boolean => {
    onSave();
    return true;
  };
  const extensions: Extension[] = [
    keymap.of([{ key: 'Mod-s', preventDefault: true, run: save }]),
    lineNumbers(),
    highlightActiveLine(),
    highlightActiveLineGutter(),
    history(),
    drawSelection(),
    indentOnInput(),
    bracketMatching(),
    search({ top: true }),
    highlightSelectionMatches(),
    keymap.of([...defaultKeymap, ...historyKeymap, ...searchKeymap]),
    syntaxHighlighting(isDark ? darkHighlight : defaultHighlightStyle),
    EditorView.theme(THEME, { dark: isDark }),
    EditorState.readOnly.of(isReadOnly),
    EditorView.contentAttributes.of({ 'aria-label': label }),
    EditorView.updateListener.of((update) => {
      if (update.docChanged) onChange();
    }),
    ...(language === undefined ? [] : [await language()]),
  ];
  const view = new EditorView({ parent, state: EditorState.create({ doc: text, extensions }) });
  if (line !== undefined) {
    const { from } = view.state.doc.line(Math.max(1, Math.min(line, view.state.doc.lines)));
    view.dispatch({
      selection: { anchor: from },
      effects: EditorView.scrollIntoView(from, { y: 'center' }),
    });
  }
  view.focus();
  return view;
}
