import type { ComponentChildren, InputHTMLAttributes, JSX } from 'preact';
import { useEffect, useId, useLayoutEffect, useRef, useState } from 'preact/hooks';
import { attempt, dismiss, messageOf, notices, tell } from '../lib/notices.ts';
import { text } from '../text.ts';
import { CopyIcon, CrossIcon } from './icons.tsx';

const SLOW_MS = 200;

/** Shows its content only after a noticeable delay. */
function Delayed({ children }: { children: ComponentChildren }): JSX.Element {
  const [isLate, setLate] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => setLate(true), SLOW_MS);
    return () => clearTimeout(timer);
  }, []);
  return <>{isLate ? children : null}</>;
}

export const Loading = (): JSX.Element => (
  <div class="loading" aria-busy="true">
    <Delayed>
      <span>{text.loading}</span>
    </Delayed>
  </div>
);

interface ButtonProps {
  readonly children: ComponentChildren;
  /** May return a promise: until it settles the button is disabled, and a failure is shown. */
  readonly onClick?: () => unknown;
  readonly kind?: 'main' | 'plain' | 'danger' | 'quiet';
  readonly type?: 'button' | 'submit';
  readonly disabled?: boolean;
  readonly label?: string | undefined;
  /** Shown to a pointer that rests on it. */
  readonly hint?: string | undefined;
  readonly pressed?: boolean;
}

export function Button(props: ButtonProps): JSX.Element {
  const { children, onClick, kind = 'plain', type = 'button', disabled, label, pressed } = props;
  const { hint = label } = props;
  const [isBusy, setBusy] = useState(false);
  const click = (): void => {
    if (isBusy) return;
    const work = onClick?.();
    if (!(work instanceof Promise)) return;
    setBusy(true);
    attempt(() => work.finally(() => setBusy(false)));
  };
  return (
    <button
      type={type}
      class={`button ${kind}`}
      disabled={disabled}
      aria-disabled={isBusy}
      aria-label={label}
      title={hint}
      aria-pressed={pressed}
      onClick={click}
    >
      {children}
    </button>
  );
}

interface DialogProps {
  readonly title: string;
  readonly onClose: () => void;
  readonly children: ComponentChildren;
  readonly isWide?: boolean;
}

/** A modal dialogue. The browser keeps the focus in it, and closes it with Escape. */
export function Dialog({ title, onClose, children, isWide = false }: DialogProps): JSX.Element {
  const box = useRef<HTMLDialogElement>(null);
  const id = useId();
  // Before anything is drawn: what is typed at once is for the dialogue, not for the page behind
  // it.
  useLayoutEffect(() => box.current?.showModal(), []);
  return (
    <dialog ref={box} class={isWide ? 'wide' : ''} aria-labelledby={id} onClose={onClose}>
      <header>
        <h2 id={id}>{title}</h2>
        <Button kind="quiet" label={text.close} onClick={() => box.current?.close()}>
          <CrossIcon />
        </Button>
      </header>
      {children}
    </dialog>
  );
}

/** Values of a form's fields; of one that is not there, nothing. */
export interface Values {
  get(name: string): string;
}

function valuesOf(form: HTMLFormElement): Values {
  const data = new FormData(form);
  return {
    get(name) {
      const value = data.get(name);
      return typeof value === 'string' ? value : '';
    },
  };
}

interface FormProps {
  readonly submit: string;
  readonly onSubmit: (values: Values) => Promise<unknown>;
  readonly children: ComponentChildren;
  readonly kind?: 'main' | 'danger';
  readonly disabled?: boolean;
  readonly isRow?: boolean;
}

/** A form that says beside its button what was wrong. */
export function Form(props: FormProps): JSX.Element {
  const { submit, onSubmit, children, kind = 'main', disabled = false, isRow = false } = props;
  const [problem, setProblem] = useState('');
  const [isBusy, setBusy] = useState(false);
  const send = async (form: HTMLFormElement): Promise<void> => {
    setBusy(true);
    setProblem('');
    try {
      await onSubmit(valuesOf(form));
    } catch (error) {
      setProblem(messageOf(error));
    } finally {
      setBusy(false);
    }
  };
  return (
    <form
      class={isRow ? 'row' : ''}
      onSubmit={(event) => {
        event.preventDefault();
        const form = event.currentTarget;
        if (!isBusy) attempt(() => send(form));
      }}
    >
      {children}
      <div class="submit">
        <p class="problem" role="alert">
          {problem}
        </p>
        <Button type="submit" kind={kind} disabled={disabled || isBusy}>
          {submit}
        </Button>
      </div>
    </form>
  );
}

interface FieldProps extends Omit<InputHTMLAttributes, 'label' | 'name'> {
  readonly label: string;
  readonly name: string;
  readonly hint?: string;
  /** Id of a list of proposals. */
  readonly list?: string;
}

export function Field({ label, hint, ...input }: FieldProps): JSX.Element {
  const id = useId();
  return (
    <div class="field">
      <label for={id}>{label}</label>
      <input
        id={id}
        autocomplete="off"
        spellcheck={false}
        aria-describedby={hint === undefined ? undefined : `${id}-hint`}
        {...(input as object)}
      />
      {hint === undefined ? null : <small id={`${id}-hint`}>{hint}</small>}
    </div>
  );
}

interface ChoiceProps {
  readonly label: string;
  readonly name: string;
  readonly options: readonly (readonly [value: string, label: string])[];
  readonly value?: string;
  readonly onChange?: (value: string) => void;
}

export function Choice({ label, name, options, value, onChange }: ChoiceProps): JSX.Element {
  const id = useId();
  return (
    <div class="field">
      <label for={id}>{label}</label>
      <select id={id} name={name} onChange={(event) => onChange?.(event.currentTarget.value)}>
        {options.map(([each, shown]) => (
          <option key={each} value={each} selected={each === value}>
            {shown}
          </option>
        ))}
      </select>
    </div>
  );
}

export function Check({ label, name }: { label: string; name: string }): JSX.Element {
  return (
    <label class="check">
      <input type="checkbox" name={name} />
      {label}
    </label>
  );
}

interface LinesProps {
  readonly label: string;
  readonly name: string;
  readonly hint?: string;
  readonly value?: string;
  readonly rows?: number;
  readonly placeholder?: string;
}

export function Lines({ label, hint, value, ...area }: LinesProps): JSX.Element {
  const id = useId();
  return (
    <div class="field">
      <label for={id}>{label}</label>
      <textarea
        id={id}
        spellcheck={false}
        defaultValue={value ?? ''}
        aria-describedby={hint === undefined ? undefined : `${id}-hint`}
        {...area}
      />
      {hint === undefined ? null : <small id={`${id}-hint`}>{hint}</small>}
    </div>
  );
}

/** A value to be taken elsewhere. */
export function Copyable({ value, label }: { value: string; label: string }): JSX.Element {
  const copy = async (): Promise<void> => {
    await navigator.clipboard.writeText(value);
    tell(text.copied);
  };
  return (
    <div class="copyable">
      <code>{value}</code>
      <Button kind="quiet" label={`${text.copy} ${label}`} onClick={copy}>
        <CopyIcon />
      </Button>
    </div>
  );
}

/** A secret that is shown this once. */
export function Secret({ value, label }: { value: string; label: string }): JSX.Element {
  return (
    <div class="secret" role="status">
      <p>{text.shownOnce}</p>
      <Copyable value={value} label={label} />
    </div>
  );
}

interface EmptyProps {
  readonly title: string;
  readonly children?: ComponentChildren;
}

export const Empty = ({ title, children }: EmptyProps): JSX.Element => (
  <div class="empty">
    <p class="empty-title">{title}</p>
    {children}
  </div>
);

/** Something could not be loaded. */
export const Failure = ({ error, retry }: { error: Error; retry: () => void }): JSX.Element => (
  <div class="empty" role="alert">
    <p class="empty-title">{text.failed}</p>
    <p>{error.message}</p>
    <Button onClick={retry}>{text.tryAgain}</Button>
  </div>
);

/** The shown value is not current: a later request has failed. */
export const Stale = ({ error }: { error: Error | undefined }): JSX.Element | null =>
  error === undefined ? null : (
    <p class="stale" role="status">
      {text.stale(error.message)}
    </p>
  );

const MOVING = new Set(['pending', 'pausing', 'stopping', 'creating', 'building', 'draining']);
const GOOD = new Set([
  ...['running', 'available', 'ready', 'completed', 'connected'],
  ...['up', 'done', 'delivered'],
]);
const BAD = new Set(['failed', 'error', 'timed_out', 'refused', 'away']);

export function Status({ of }: { of: string }): JSX.Element {
  const tone = MOVING.has(of) ? 'moving' : GOOD.has(of) ? 'good' : BAD.has(of) ? 'bad' : 'still';
  return <span class={`status ${tone}`}>{of.replace('_', ' ')}</span>;
}

export const Notices = (): JSX.Element => (
  <div class="notices" aria-live="polite">
    {notices.value.map(({ id, kind, text: shown }) => (
      <div key={id} class={`notice ${kind}`} role={kind === 'bad' ? 'alert' : 'status'}>
        <span>{shown}</span>
        <Button kind="quiet" label={text.dismiss} onClick={() => dismiss(id)}>
          <CrossIcon />
        </Button>
      </div>
    ))}
  </div>
);

interface PageProps {
  readonly title: string;
  /** From the list to what is shown. */
  readonly crumbs?: readonly (readonly [label: string, href: string])[];
  readonly beside?: ComponentChildren;
  readonly actions?: ComponentChildren;
  readonly children: ComponentChildren;
}

export function Page({ title, crumbs = [], beside, actions, children }: PageProps): JSX.Element {
  useEffect(() => {
    document.title = `${title} · Berth`;
  }, [title]);
  return (
    <>
      <header class="page-head">
        <div class="page-title">
          {crumbs.map(([label, href]) => (
            <a key={href} class="crumb" href={href}>
              {label}
            </a>
          ))}
          <h1>
            {title} {beside}
          </h1>
        </div>
        <div class="page-actions">{actions}</div>
      </header>
      {children}
    </>
  );
}

interface TabsProps {
  readonly label: string;
  readonly tabs: readonly (readonly [name: string, label: string, href: string])[];
  readonly current: string;
}

export const Tabs = ({ label, tabs, current }: TabsProps): JSX.Element => (
  <nav class="tabs" aria-label={label}>
    {tabs.map(([name, shown, href]) => (
      <a key={name} href={href} aria-current={name === current ? 'page' : undefined}>
        {shown}
      </a>
    ))}
  </nav>
);

interface PanelProps {
  readonly title: string;
  readonly beside?: ComponentChildren;
  readonly actions?: ComponentChildren;
  readonly children: ComponentChildren;
}

export function Panel({ title, beside, actions, children }: PanelProps): JSX.Element {
  const id = useId();
  return (
    <section class="panel" aria-labelledby={id}>
      <header>
        <div class="panel-title">
          <h2 id={id}>{title}</h2>
          {beside}
        </div>
        <div class="panel-actions">{actions}</div>
      </header>
      {children}
    </section>
  );
}

export const Facts = ({
  of,
}: {
  of: readonly (readonly [label: string, value: ComponentChildren] | null)[];
}): JSX.Element => (
  <dl class="facts">
    {of.map((fact) =>
      fact === null ? null : (
        <div key={fact[0]}>
          <dt>{fact[0]}</dt>
          <dd>{fact[1]}</dd>
        </div>
      ),
    )}
  </dl>
);

interface ConfirmProps {
  readonly title: string;
  readonly children: ComponentChildren;
  readonly submit: string;
  readonly onConfirm: () => Promise<unknown>;
  readonly onClose: () => void;
  /** Must be typed first. */
  readonly name?: string;
}

/** Asks before what cannot be undone. */
export function Confirm(props: ConfirmProps): JSX.Element {
  const { title, children, submit, onConfirm, onClose, name } = props;
  const [typed, setTyped] = useState('');
  const confirm = async (): Promise<void> => {
    await onConfirm();
    onClose();
  };
  return (
    <Dialog title={title} onClose={onClose}>
      <Form
        submit={submit}
        kind="danger"
        disabled={name !== undefined && typed !== name}
        onSubmit={confirm}
      >
        {children}
        {name === undefined ? null : (
          <Field
            label={text.typeName(name)}
            name="confirm"
            value={typed}
            autofocus
            onInput={(event) => setTyped(event.currentTarget.value)}
          />
        )}
      </Form>
    </Dialog>
  );
}
