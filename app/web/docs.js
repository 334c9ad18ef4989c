// Swagger UI puts a link into the button of each operation, which screen readers cannot tell apart: here it is plain text.
const plainPaths = () => ({
  wrapComponents: { DeepLink: (_, { React }) => ({ text }) => React.createElement("span", null, text) },
});

SwaggerUIBundle({ url: "/openapi.json", dom_id: "#swagger", deepLinking: true, validatorUrl: null, plugins: [plainPaths] });
